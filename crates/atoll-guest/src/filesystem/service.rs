//! `filesystem.Filesystem`.

use atoll_protocol::envd::filesystem::{
    CreateWatcherRequest, CreateWatcherResponse, Filesystem as FilesystemService,
    GetWatcherEventsRequest, GetWatcherEventsResponse, ListDirRequest, ListDirResponse,
    MakeDirRequest, MakeDirResponse, MoveRequest, MoveResponse, RemoveRequest, RemoveResponse,
    RemoveWatcherRequest, RemoveWatcherResponse, StatRequest, StatResponse, WatchDirRequest,
    WatchDirResponse,
};
use connectrpc::{ConnectError, RequestContext, ServiceRequest, ServiceResult, ServiceStream};

use super::Filesystem;

#[allow(
    refining_impl_trait,
    reason = "the generated trait asks for `impl Encodable`, we name the messages"
)]
impl FilesystemService for Filesystem {
    async fn stat(
        &self,
        _: RequestContext,
        _: ServiceRequest<'_, StatRequest>,
    ) -> ServiceResult<StatResponse> {
        Err(self.missing())
    }

    async fn make_dir(
        &self,
        _: RequestContext,
        _: ServiceRequest<'_, MakeDirRequest>,
    ) -> ServiceResult<MakeDirResponse> {
        Err(self.missing())
    }

    async fn r#move(
        &self,
        _: RequestContext,
        _: ServiceRequest<'_, MoveRequest>,
    ) -> ServiceResult<MoveResponse> {
        Err(self.missing())
    }

    async fn list_dir(
        &self,
        _: RequestContext,
        _: ServiceRequest<'_, ListDirRequest>,
    ) -> ServiceResult<ListDirResponse> {
        Err(self.missing())
    }

    async fn remove(
        &self,
        _: RequestContext,
        _: ServiceRequest<'_, RemoveRequest>,
    ) -> ServiceResult<RemoveResponse> {
        Err(self.missing())
    }

    async fn watch_dir(
        &self,
        _: RequestContext,
        _: ServiceRequest<'_, WatchDirRequest>,
    ) -> ServiceResult<ServiceStream<WatchDirResponse>> {
        Err(self.missing())
    }

    async fn create_watcher(
        &self,
        _: RequestContext,
        _: ServiceRequest<'_, CreateWatcherRequest>,
    ) -> ServiceResult<CreateWatcherResponse> {
        Err(self.missing())
    }

    async fn get_watcher_events(
        &self,
        _: RequestContext,
        _: ServiceRequest<'_, GetWatcherEventsRequest>,
    ) -> ServiceResult<GetWatcherEventsResponse> {
        Err(self.missing())
    }

    async fn remove_watcher(
        &self,
        _: RequestContext,
        _: ServiceRequest<'_, RemoveWatcherRequest>,
    ) -> ServiceResult<RemoveWatcherResponse> {
        Err(self.missing())
    }
}

impl Filesystem {
    fn missing(&self) -> ConnectError {
        let _ = &self.settings;
        ConnectError::unimplemented("not there yet")
    }
}
