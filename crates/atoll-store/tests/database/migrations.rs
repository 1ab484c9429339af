//! From every earlier version to the newest one, and never back.

use std::fs;
use std::path::Path;

use atoll_store::db::{Database, DatabaseError, Location, NodeId, SCHEMA_VERSION};
use sqlx::{AssertSqlSafe, Connection as _, PgConnection, SqliteConnection};

use crate::fixture::{Fixture, NOW, new_key, new_sandbox};

/// The scripts as they are in the source, in order.
fn scripts() -> Vec<String> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/db/migrations");
    let mut paths: Vec<_> = fs::read_dir(directory)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    paths.sort();
    let scripts: Vec<String> = paths
        .iter()
        .map(|path| fs::read_to_string(path).unwrap())
        .collect();
    assert_eq!(i64::try_from(scripts.len()).unwrap(), SCHEMA_VERSION);
    scripts
}

/// Runs statements past Atoll.
async fn execute(location: &str, script: String) {
    let script = sqlx::raw_sql(AssertSqlSafe(script));
    if location.starts_with("postgres") {
        let mut connection = PgConnection::connect(location).await.unwrap();
        script.execute(&mut connection).await.unwrap();
        connection.close().await.unwrap();
    } else {
        let url = format!("sqlite:{location}?mode=rwc");
        let mut connection = SqliteConnection::connect(&url).await.unwrap();
        script.execute(&mut connection).await.unwrap();
        connection.close().await.unwrap();
    }
}

/// Takes away every table, as if nobody had been here.
async fn empty(fixture: &Fixture) {
    if fixture.location.starts_with("postgres") {
        let script = "DROP SCHEMA public CASCADE; CREATE SCHEMA public;";
        execute(&fixture.location, script.to_owned()).await;
        return;
    }
    fixture.database.close().await;
    for end in ["", "-wal", "-shm"] {
        let path = format!("{}{end}", fixture.location);
        if Path::new(&path).exists() {
            fs::remove_file(path).unwrap();
        }
    }
}

pub(crate) async fn every_earlier_version_becomes_the_newest(fixture: &Fixture) {
    let scripts = scripts();
    for version in 0..=scripts.len() {
        empty(fixture).await;
        if version > 0 {
            let mut old = "CREATE TABLE schema_version (version BIGINT NOT NULL);".to_owned();
            for (number, script) in (1..).zip(&scripts[..version]) {
                old.push_str(script);
                old.push_str(&format!("INSERT INTO schema_version VALUES ({number});"));
            }
            if !fixture.location.starts_with("postgres") {
                old.push_str("PRAGMA application_id = 1098149740;");
            }
            // Something that was there before must be there afterwards.
            old.push_str("INSERT INTO tenants VALUES ('11111111-1111-4111-8111-111111111111', 'kept', 1, 5, 'n', 1);");
            execute(&fixture.location, old).await;
        }
        let database = fixture.again().await;
        let names: Vec<String> = database
            .tenants()
            .await
            .unwrap()
            .into_iter()
            .map(|tenant| tenant.name)
            .collect();
        let kept: &[&str] = if version > 0 { &["kept"] } else { &[] };
        assert_eq!(names, kept, "from version {version}");
        use_everything(&database).await;
        database.close().await;
        // And what is newest stays as it is.
        fixture.again().await.close().await;
    }
}

/// Touches every table that a creation and its end touch.
async fn use_everything(database: &Database) {
    let tenant = database.ensure_tenant("a", NOW).await.unwrap().tenant_id;
    database.insert_key(&new_key(tenant)).await.unwrap();
    let fence = database.begin_epoch(NOW).await.unwrap();
    database
        .create_sandbox(&fence, &new_sandbox(tenant, "i1"), None)
        .await
        .unwrap();
    let row = database.sandbox(tenant, "i1").await.unwrap().unwrap();
    database.append_logs(&fence, "i1", &[]).await.unwrap();
    database
        .bury_sandbox(&fence, "i1", row.expected(), NOW, "{}", &[])
        .await
        .unwrap();
}

pub(crate) async fn a_database_of_a_newer_version_is_refused_and_left_alone(fixture: &Fixture) {
    fixture.tenant("kept").await;
    let newer = SCHEMA_VERSION + 1;
    let script = format!("INSERT INTO schema_version VALUES ({newer});");
    execute(&fixture.location, script).await;
    let location: Location = fixture.location.parse().unwrap();
    let node = NodeId::of_home(fixture.home.path()).unwrap();
    let refused = Database::open(&location, node).await.unwrap_err();
    assert!(
        matches!(refused, DatabaseError::Newer { found, known } if found == newer && known == SCHEMA_VERSION),
        "{refused}"
    );
    assert!(refused.hint().is_some());
    // What had it open before sees it as it was.
    assert_eq!(fixture.database.tenants().await.unwrap().len(), 1);
}

pub(crate) async fn several_processes_that_start_at_once_make_one_schema(fixture: &Fixture) {
    for _ in 0..5 {
        empty(fixture).await;
        let opened = futures_util::future::join_all((0..6).map(|_| fixture.again())).await;
        for database in &opened {
            database.ensure_tenant("one", NOW).await.unwrap();
        }
        assert_eq!(opened[0].tenants().await.unwrap().len(), 1);
        for database in opened {
            database.close().await;
        }
    }
}
