//! `filesystem.Filesystem`.

use atoll_protocol::envd::filesystem::{
    CreateWatcherRequest, CreateWatcherResponse, Filesystem as FilesystemService,
    GetWatcherEventsRequest, GetWatcherEventsResponse, ListDirRequest, ListDirResponse,
    MakeDirRequest, MakeDirResponse, MoveRequest, MoveResponse, RemoveRequest, RemoveResponse,
    RemoveWatcherRequest, RemoveWatcherResponse, StatRequest, StatResponse, WatchDirRequest,
    WatchDirResponse,
};
use connectrpc::{RequestContext, Response, ServiceRequest, ServiceResult, ServiceStream};
use rustix::io::Errno;
use tokio::time::Instant;

use super::entry::describe;
use super::error::{FilesystemError, failed};
use super::follow::follow;
use super::watch::{Order, Reach, Watch};
use super::{Filesystem, acting, change, listing, removal};
use crate::rpc::keepalive_interval;

#[allow(
    refining_impl_trait,
    reason = "the generated trait asks for `impl Encodable`, we name the messages"
)]
impl FilesystemService for Filesystem {
    async fn stat(
        &self,
        context: RequestContext,
        request: ServiceRequest<'_, StatRequest>,
    ) -> ServiceResult<StatResponse> {
        let user = self.user(context.headers())?;
        let path = self.resolve(request.path, &user)?;
        let entry = acting(&user, move |names| {
            describe(&path, names).map_err(|error| match error {
                // Below a file there is nothing either.
                Errno::NOENT | Errno::NOTDIR => FilesystemError::FileNotFound(path),
                error => failed("stat", &path)(error),
            })
        })
        .await?;
        Response::ok(StatResponse {
            entry: entry.into(),
            ..StatResponse::default()
        })
    }

    async fn make_dir(
        &self,
        context: RequestContext,
        request: ServiceRequest<'_, MakeDirRequest>,
    ) -> ServiceResult<MakeDirResponse> {
        let user = self.user(context.headers())?;
        let path = self.resolve(request.path, &user)?;
        let entry = acting(&user, move |names| change::make(&path, names)).await?;
        Response::ok(MakeDirResponse {
            entry: entry.into(),
            ..MakeDirResponse::default()
        })
    }

    async fn r#move(
        &self,
        context: RequestContext,
        request: ServiceRequest<'_, MoveRequest>,
    ) -> ServiceResult<MoveResponse> {
        let user = self.user(context.headers())?;
        let source = self.resolve(request.source, &user)?;
        let destination = self.resolve(request.destination, &user)?;
        let entry = acting(&user, move |names| {
            change::rename(&source, &destination, names)
        })
        .await?;
        Response::ok(MoveResponse {
            entry: entry.into(),
            ..MoveResponse::default()
        })
    }

    async fn list_dir(
        &self,
        context: RequestContext,
        request: ServiceRequest<'_, ListDirRequest>,
    ) -> ServiceResult<ListDirResponse> {
        let user = self.user(context.headers())?;
        let path = self.resolve(request.path, &user)?;
        let depth = request.depth;
        let entries = acting(&user, move |names| listing::list(&path, depth, names)).await?;
        Response::ok(ListDirResponse {
            entries,
            ..ListDirResponse::default()
        })
    }

    async fn remove(
        &self,
        context: RequestContext,
        request: ServiceRequest<'_, RemoveRequest>,
    ) -> ServiceResult<RemoveResponse> {
        let user = self.user(context.headers())?;
        let path = self.resolve(request.path, &user)?;
        acting(&user, move |_| removal::remove(&path)).await?;
        Response::ok(RemoveResponse::default())
    }

    async fn watch_dir(
        &self,
        context: RequestContext,
        request: ServiceRequest<'_, WatchDirRequest>,
    ) -> ServiceResult<ServiceStream<WatchDirResponse>> {
        let user = self.user(context.headers())?;
        let order = Order {
            path: self.resolve(request.path, &user)?,
            reach: Reach::of(request.recursive),
            include_entry: request.include_entry,
            allow_network_mounts: request.allow_network_mounts,
        };
        let watch = Watch::start(order, user).await?;
        let deadline = context.deadline().map(Instant::from_std);
        Response::stream_ok(follow(watch, keepalive_interval(&context), deadline))
    }

    async fn create_watcher(
        &self,
        context: RequestContext,
        request: ServiceRequest<'_, CreateWatcherRequest>,
    ) -> ServiceResult<CreateWatcherResponse> {
        let user = self.user(context.headers())?;
        let order = Order {
            path: self.resolve(request.path, &user)?,
            reach: Reach::of(request.recursive),
            include_entry: request.include_entry,
            allow_network_mounts: request.allow_network_mounts,
        };
        self.watchers.check_room()?;
        let watch = Watch::start(order, user).await?;
        Response::ok(CreateWatcherResponse {
            watcher_id: self.watchers.insert(watch)?,
            ..CreateWatcherResponse::default()
        })
    }

    async fn get_watcher_events(
        &self,
        _: RequestContext,
        request: ServiceRequest<'_, GetWatcherEventsRequest>,
    ) -> ServiceResult<GetWatcherEventsResponse> {
        Response::ok(GetWatcherEventsResponse {
            events: self.watchers.events(request.watcher_id).await?,
            ..GetWatcherEventsResponse::default()
        })
    }

    async fn remove_watcher(
        &self,
        _: RequestContext,
        request: ServiceRequest<'_, RemoveWatcherRequest>,
    ) -> ServiceResult<RemoveWatcherResponse> {
        self.watchers.remove(request.watcher_id)?;
        Response::ok(RemoveWatcherResponse::default())
    }
}
