//! Sessions, grants and the history of executions.

use atoll_store::db::{
    Admitted, Execution, ExecutionId, ExecutionQuery, ExecutionStatus, Fence, GrantedObject,
    HistoryBounds, KeyId, Session, SessionEnd, SessionId, SessionQuery, SessionUse, TenantId,
};

use crate::fixture::{Fixture, NOW, metadata, new_sandbox};

fn session(tenant: TenantId, agent: &str, task: Option<&str>) -> Session {
    Session {
        session_id: SessionId::random(),
        tenant_id: tenant,
        key_id: KeyId::from_bytes([7; 16]),
        agent_id: agent.to_owned(),
        task_id: task.map(str::to_owned),
        user_id: Some("user".to_owned()),
        template: "base".to_owned(),
        metadata: metadata(&[("a", "b")]),
        network: "{}".to_owned(),
        limits: r#"{"memory_mib":512}"#.to_owned(),
        sealed: "opaque".to_owned(),
        sandbox_id: None,
        generation: 0,
        idle_ms: 1000,
        created_at_ms: NOW,
        last_used_at_ms: NOW,
        expires_at_ms: NOW + 5000,
        ended_at_ms: None,
        end_reason: None,
    }
}

async fn admit(fixture: &Fixture, fence: &Fence, session: &Session) -> Admitted {
    let inserting = fixture.database.insert_session(fence, session, 2);
    inserting.await.unwrap()
}

pub(crate) async fn an_agent_has_one_session_per_task_and_only_so_many(fixture: &Fixture) {
    let (fence, tenant) = (fixture.fence().await, fixture.tenant("a").await);
    let first = session(tenant, "agent", Some("task"));
    assert_eq!(admit(fixture, &fence, &first).await, Admitted::New);
    let again = session(tenant, "agent", Some("task"));
    let earlier = admit(fixture, &fence, &again).await;
    assert_eq!(earlier, Admitted::Earlier(Box::new(first.clone())));
    assert_eq!(
        admit(fixture, &fence, &session(tenant, "agent", None)).await,
        Admitted::New
    );
    let third = session(tenant, "agent", None);
    assert_eq!(admit(fixture, &fence, &third).await, Admitted::TooMany);
    assert_eq!(
        admit(fixture, &fence, &session(tenant, "other", None)).await,
        Admitted::New
    );

    let end = SessionEnd {
        at_ms: NOW + 1,
        reason: "deleted",
    };
    let database = &fixture.database;
    assert!(
        database
            .end_session(&fence, first.session_id, end)
            .await
            .unwrap()
    );
    assert!(
        !database
            .end_session(&fence, first.session_id, end)
            .await
            .unwrap()
    );
    let now = SessionUse {
        sandbox_id: Some("i1"),
        generation: 1,
        last_used_at_ms: NOW + 2,
    };
    assert!(
        !database
            .note_session_use(&fence, first.session_id, now)
            .await
            .unwrap()
    );
    assert_eq!(admit(fixture, &fence, &again).await, Admitted::New);
    assert!(
        database
            .note_session_use(&fence, again.session_id, now)
            .await
            .unwrap()
    );
    let stored = database
        .session(tenant, again.session_id)
        .await
        .unwrap()
        .unwrap();
    let expected = Session {
        sandbox_id: Some("i1".to_owned()),
        generation: 1,
        last_used_at_ms: NOW + 2,
        ..again.clone()
    };
    assert_eq!(stored, expected);
    let stranger = fixture.tenant("b").await;
    assert_eq!(
        database.session(stranger, again.session_id).await.unwrap(),
        None
    );
    assert_eq!(database.active_sessions().await.unwrap().len(), 3);
    // An earlier start of the server changes nothing any more.
    let later = fixture.fence().await;
    assert!(
        !database
            .note_session_use(&fence, again.session_id, now)
            .await
            .unwrap()
    );
    assert_eq!(
        admit(fixture, &fence, &session(tenant, "new", None)).await,
        Admitted::Fenced
    );
    assert!(
        database
            .end_session(&later, again.session_id, end)
            .await
            .unwrap()
    );

    let list = |is_active: Option<bool>, limit: usize| SessionQuery {
        agent_id: Some("agent".to_owned()),
        is_active,
        limit,
        ..SessionQuery::default()
    };
    let page = database
        .list_sessions(tenant, &list(None, 2))
        .await
        .unwrap();
    assert_eq!(page.sessions.len(), 2);
    let rest = SessionQuery {
        after: page.next,
        ..list(None, 2)
    };
    let rest = database.list_sessions(tenant, &rest).await.unwrap();
    assert_eq!((rest.sessions.len(), rest.next), (1, None));
    let ended = database
        .list_sessions(tenant, &list(Some(false), 9))
        .await
        .unwrap();
    assert_eq!(ended.sessions.len(), 2);
    for ended in &ended.sessions {
        assert_eq!(ended.sealed, "", "secrets go with the session");
    }
    // What ended last stays, where there are too many.
    assert_eq!(database.forget_sessions(NOW, 1).await.unwrap(), 1);
    assert_eq!(database.forget_sessions(NOW + 2, 9).await.unwrap(), 1);
    assert_eq!(
        database.session(tenant, first.session_id).await.unwrap(),
        None
    );
}

pub(crate) async fn grants_are_of_a_tenant_and_go_with_what_they_open(fixture: &Fixture) {
    let (fence, tenant) = (fixture.fence().await, fixture.tenant("a").await);
    let database = &fixture.database;
    fixture.sandbox(&fence, &new_sandbox(tenant, "i1")).await;
    let made = session(tenant, "agent", None);
    admit(fixture, &fence, &made).await;
    let id = made.session_id.to_string();
    for object in [
        GrantedObject::Sandbox("i1"),
        GrantedObject::Sandbox("gone"),
        GrantedObject::Session(&id),
    ] {
        for _ in 0..2 {
            let granting = database.grant_to_agent(&fence, tenant, object, "friend", NOW, 1);
            assert!(granting.await.unwrap());
        }
        let one_more = database.grant_to_agent(&fence, tenant, object, "other", NOW, 1);
        assert!(!one_more.await.unwrap(), "so many, and no more");
        let agents = database.agents_let_into(tenant, object).await.unwrap();
        assert_eq!(agents, ["friend"]);
        let stranger = fixture.tenant("b").await;
        let others = database.agents_let_into(stranger, object).await.unwrap();
        assert!(others.is_empty());
    }
    database.forget_sessions(NOW, 9).await.unwrap();
    let gone = GrantedObject::Sandbox("gone");
    assert!(
        database
            .agents_let_into(tenant, gone)
            .await
            .unwrap()
            .is_empty()
    );
    let object = GrantedObject::Session(&id);
    assert!(
        database
            .revoke_from_agent(tenant, object, "friend")
            .await
            .unwrap()
    );
    assert!(
        !database
            .revoke_from_agent(tenant, object, "friend")
            .await
            .unwrap()
    );
}

fn execution(tenant: TenantId, at_ms: i64, agent: Option<&str>) -> Execution {
    Execution {
        execution_id: ExecutionId::random(),
        tenant_id: tenant,
        key_id: KeyId::from_bytes([7; 16]),
        agent_id: agent.map(str::to_owned),
        task_id: Some("task".to_owned()),
        session_id: None,
        sandbox_id: "i1".to_owned(),
        template_id: "t".to_owned(),
        tier: "container".to_owned(),
        kind: "code".to_owned(),
        language: Some("python".to_owned()),
        digest: "blake3:0".to_owned(),
        code_bytes: 3,
        status: ExecutionStatus::Running,
        outcome: None,
        exit_code: None,
        report: "{}".to_owned(),
        stdout_bytes: 0,
        stderr_bytes: 0,
        created_at_ms: at_ms,
        ended_at_ms: None,
        duration_ms: None,
        cpu_usec: None,
        memory_peak_bytes: None,
    }
}

fn ended(execution: &Execution, status: ExecutionStatus) -> Execution {
    Execution {
        status,
        outcome: Some("COMPLETED".to_owned()),
        report: "{\"stdout\":\"a\u{fffd}\"}".to_owned(),
        ended_at_ms: Some(execution.created_at_ms + 10),
        duration_ms: Some(10),
        cpu_usec: Some(100),
        memory_peak_bytes: Some(1),
        ..execution.clone()
    }
}

pub(crate) async fn executions_are_written_twice_and_found_by_what_they_were(fixture: &Fixture) {
    let (fence, tenant) = (fixture.fence().await, fixture.tenant("a").await);
    let database = &fixture.database;
    let rows: Vec<Execution> = (0..5)
        .map(|at| execution(tenant, NOW + at, Some(if at < 3 { "a" } else { "b" })))
        .collect();
    database.record_executions(&fence, &rows).await.unwrap();
    let done = ended(&rows[0], ExecutionStatus::Failed);
    database
        .record_executions(&fence, std::slice::from_ref(&done))
        .await
        .unwrap();
    let stored = database
        .execution(tenant, done.execution_id)
        .await
        .unwrap()
        .unwrap();
    assert_eq!(
        (&stored.execution, stored.is_sandbox_destroyed()),
        (&done, true)
    );
    fixture.sandbox(&fence, &new_sandbox(tenant, "i1")).await;
    let stored = database
        .execution(tenant, done.execution_id)
        .await
        .unwrap()
        .unwrap();
    assert!(!stored.is_sandbox_destroyed() && stored.sandbox_ended_at_ms.is_none());
    let stranger = fixture.tenant("b").await;
    assert_eq!(
        database
            .execution(stranger, done.execution_id)
            .await
            .unwrap(),
        None
    );

    let count = async |query: ExecutionQuery| {
        let page = database.list_executions(tenant, &query).await.unwrap();
        page.executions.len()
    };
    let all = ExecutionQuery {
        limit: 10,
        ..ExecutionQuery::default()
    };
    assert_eq!(count(all.clone()).await, 5);
    for (query, expected) in [
        (
            ExecutionQuery {
                agent_id: Some("a".to_owned()),
                ..all.clone()
            },
            3,
        ),
        (
            ExecutionQuery {
                task_id: Some("other".to_owned()),
                ..all.clone()
            },
            0,
        ),
        (
            ExecutionQuery {
                status: Some(ExecutionStatus::Failed),
                ..all.clone()
            },
            1,
        ),
        (
            ExecutionQuery {
                from_ms: Some(NOW + 1),
                to_ms: Some(NOW + 3),
                ..all.clone()
            },
            2,
        ),
        (
            ExecutionQuery {
                session_id: Some("x".to_owned()),
                ..all.clone()
            },
            0,
        ),
        (
            ExecutionQuery {
                sandbox_id: Some("i1".to_owned()),
                ..all.clone()
            },
            5,
        ),
    ] {
        assert_eq!(count(query.clone()).await, expected, "{query:?}");
    }
    let mut seen = Vec::new();
    let mut query = ExecutionQuery { limit: 2, ..all };
    loop {
        let page = database.list_executions(tenant, &query).await.unwrap();
        seen.extend(
            page.executions
                .into_iter()
                .map(|one| one.execution.created_at_ms - NOW),
        );
        let Some(next) = page.next else { break };
        query.after = Some(next);
    }
    assert_eq!(seen, [4, 3, 2, 1, 0]);
    let usage = database
        .execution_usage(tenant, NOW, NOW + 3)
        .await
        .unwrap();
    assert_eq!(usage.len(), 1);
    assert_eq!(
        (usage[0].executions, usage[0].failed, usage[0].cpu_usec),
        (3, 1, 100)
    );
}

pub(crate) async fn what_ran_is_interrupted_by_the_next_start_and_the_history_ends(
    fixture: &Fixture,
) {
    let (fence, tenant) = (fixture.fence().await, fixture.tenant("a").await);
    let database = &fixture.database;
    let rows: Vec<Execution> = (0..6).map(|at| execution(tenant, NOW + at, None)).collect();
    database.record_executions(&fence, &rows).await.unwrap();
    let done: Vec<Execution> = rows[1..]
        .iter()
        .map(|row| ended(row, ExecutionStatus::Succeeded))
        .collect();
    database.record_executions(&fence, &done).await.unwrap();
    assert_eq!(
        database
            .interrupt_executions(&fence, "X", NOW)
            .await
            .unwrap(),
        0
    );
    let later = fixture.fence().await;
    assert_eq!(
        database
            .interrupt_executions(&later, "STOPPED", NOW + 9)
            .await
            .unwrap(),
        1
    );
    let found = database
        .execution(tenant, rows[0].execution_id)
        .await
        .unwrap()
        .unwrap();
    let expected = Execution {
        status: ExecutionStatus::Interrupted,
        outcome: Some("STOPPED".to_owned()),
        ended_at_ms: Some(NOW + 9),
        ..rows[0].clone()
    };
    assert_eq!(found.execution, expected);
    // The server before writes nothing any more.
    database
        .record_executions(&fence, &[execution(tenant, NOW, None)])
        .await
        .unwrap();
    let all = ExecutionQuery {
        limit: 10,
        ..ExecutionQuery::default()
    };
    let count = async || {
        database
            .list_executions(tenant, &all)
            .await
            .unwrap()
            .executions
            .len()
    };
    assert_eq!(count().await, 6);
    let bounds = |before_ms, per_tenant| HistoryBounds {
        before_ms,
        per_tenant,
    };
    assert_eq!(database.forget_executions(bounds(NOW, 6)).await.unwrap(), 0);
    assert_eq!(
        database
            .forget_executions(bounds(NOW + 2, 6))
            .await
            .unwrap(),
        2
    );
    assert_eq!(database.forget_executions(bounds(NOW, 3)).await.unwrap(), 1);
    assert_eq!(count().await, 3);
}
