//! Files that are no database of ours: refused, explained, and not touched.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use atoll_store::db::{Database, DatabaseError, Location, NodeId};
use sqlx::{Connection as _, SqliteConnection};

use crate::fixture::NOW;

async fn open(path: &Path) -> Result<Database, DatabaseError> {
    let node = NodeId::of_home(path.parent().unwrap()).unwrap();
    Database::open(&Location::File(path.to_owned()), node).await
}

#[tokio::test]
async fn a_file_that_is_no_database_is_refused_and_not_touched() {
    let home = tempfile::tempdir().unwrap();
    let path = home.path().join("atoll.db");
    for content in [&b"#!/bin/sh\n"[..], &[0; 5000], &[0xff; 100]] {
        fs::write(&path, content).unwrap();
        let refused = open(&path).await.unwrap_err();
        assert!(
            matches!(&refused, DatabaseError::NotADatabase(found) if *found == path),
            "{refused}"
        );
        assert!(refused.hint().is_some());
        assert_eq!(fs::read(&path).unwrap(), content);
    }
}

#[tokio::test]
async fn a_database_of_something_else_is_refused_and_not_touched() {
    let home = tempfile::tempdir().unwrap();
    let path = home.path().join("atoll.db");
    let url = format!("sqlite:{}?mode=rwc", path.display());
    let mut connection = SqliteConnection::connect(&url).await.unwrap();
    sqlx::raw_sql("CREATE TABLE photos (name TEXT)")
        .execute(&mut connection)
        .await
        .unwrap();
    connection.close().await.unwrap();
    let before = fs::read(&path).unwrap();
    let refused = open(&path).await.unwrap_err();
    assert!(matches!(refused, DatabaseError::Foreign(_)), "{refused}");
    assert!(refused.hint().is_some());
    assert_eq!(fs::read(&path).unwrap(), before);
}

#[test]
fn a_postgres_database_of_something_else_is_refused() {
    crate::fixture::on_postgres(async |fixture| {
        let mut connection = sqlx::PgConnection::connect(&fixture.location)
            .await
            .unwrap();
        let script =
            "DROP SCHEMA public CASCADE; CREATE SCHEMA public; CREATE TABLE photos (name TEXT);";
        sqlx::raw_sql(script)
            .execute(&mut connection)
            .await
            .unwrap();
        connection.close().await.unwrap();
        let location: Location = fixture.location.parse().unwrap();
        let node = fixture.database.node().clone();
        let refused = Database::open(&location, node).await.unwrap_err();
        assert!(matches!(refused, DatabaseError::Foreign(_)), "{refused}");
    });
}

#[tokio::test]
async fn a_damaged_database_is_noticed() {
    let home = tempfile::tempdir().unwrap();
    let path = home.path().join("atoll.db");
    let database = open(&path).await.unwrap();
    for number in 0..200 {
        let name = format!("tenant-{number}");
        database.ensure_tenant(&name, NOW).await.unwrap();
    }
    database.check().await.unwrap();
    database.close().await;
    let whole = fs::read(&path).unwrap();
    assert!(whole.len() > 3 * 4096);
    // Every page but the first, one after the other.
    let mut noticed = 0;
    for page in 1..whole.len() / 4096 {
        let mut damaged = whole.clone();
        damaged[page * 4096..(page + 1) * 4096].fill(0xa5);
        fs::write(&path, damaged).unwrap();
        let found = match open(&path).await {
            Ok(database) => database.check().await,
            Err(error) => Err(error),
        };
        let error = found.unwrap_err();
        assert!(
            matches!(error, DatabaseError::Damaged(_)),
            "page {page}: {error}"
        );
        assert!(error.hint().is_some());
        noticed += 1;
    }
    assert!(noticed > 2);
}

#[tokio::test]
async fn a_new_database_is_for_its_owner_alone() {
    let home = tempfile::tempdir().unwrap();
    let path = home.path().join("atoll.db");
    let database = open(&path).await.unwrap();
    database.ensure_tenant("a", NOW).await.unwrap();
    for end in ["", "-wal", "-shm"] {
        let file = format!("{}{end}", path.display());
        let mode = fs::metadata(&file).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{file}");
    }
}

#[tokio::test]
async fn an_unfinished_first_start_is_taken_up() {
    let home = tempfile::tempdir().unwrap();
    let path = home.path().join("atoll.db");
    fs::write(&path, "").unwrap();
    let database = open(&path).await.unwrap();
    database.ping().await.unwrap();
}

#[tokio::test]
async fn a_home_that_is_not_there_and_a_server_that_does_not_answer_are_named() {
    let home = tempfile::tempdir().unwrap();
    let node = NodeId::of_home(home.path()).unwrap();
    let missing = Location::File(home.path().join("no/atoll.db"));
    let refused = Database::open(&missing, node.clone()).await.unwrap_err();
    assert!(matches!(refused, DatabaseError::File { .. }), "{refused}");
    let url = format!(
        "postgres://a@localhost/a?host={}",
        home.path().display().to_string().replace('/', "%2F")
    );
    let silent: Location = url.parse().unwrap();
    let refused = Database::open(&silent, node).await.unwrap_err();
    assert!(refused.hint().is_some(), "{refused}");
}
