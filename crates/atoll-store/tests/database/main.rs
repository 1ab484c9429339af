//! The database: one suite, run on SQLite and on a real PostgreSQL that the
//! tests start and stop themselves.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "tests fail by panicking"
)]

mod crash;
mod events;
mod files;
mod fixture;
mod identity;
mod listing;
mod migrations;
mod observations;
mod postgres;
mod races;
mod sandboxes;
mod services;

/// Makes two tests of each behaviour.
macro_rules! on_both {
    ($($module:ident::$name:ident,)*) => {
        mod on_sqlite {
            $(#[test] fn $name() { super::fixture::on_sqlite(async |fixture| super::$module::$name(fixture).await); })*
        }
        mod on_postgres {
            $(#[test] fn $name() { super::fixture::on_postgres(async |fixture| super::$module::$name(fixture).await); })*
        }
    };
}

on_both! {
    crash::nothing_acknowledged_is_lost_and_nothing_is_half_when_a_writer_is_killed,
    events::an_event_is_written_with_its_change_or_not_at_all,
    events::events_are_read_by_whom_they_concern_from_both_ends,
    events::who_goes_on_after_the_last_event_misses_none,
    events::who_wants_few_events_reads_no_other_twice_and_misses_none,
    events::what_a_mark_stands_for_is_told_once,
    events::old_events_are_forgotten_by_age_and_by_number,
    events::a_webhook_begins_with_what_comes_next_and_never_goes_back,
    identity::a_tenant_is_made_once,
    identity::a_setting_is_the_first_ones,
    identity::keys_are_found_by_their_hash_and_listed_by_tenant,
    identity::a_key_is_revoked_once,
    identity::a_rotated_key_lives_for_its_grace_and_no_longer,
    identity::an_earlier_expiry_is_not_moved_by_a_rotation,
    identity::only_a_valid_key_of_the_same_tenant_is_rotated,
    identity::use_of_a_key_is_written_once_a_minute,
    identity::every_change_of_a_key_changes_the_revision,
    identity::a_token_takes_a_live_sandbox_and_a_valid_key_of_one_tenant,
    listing::pages_show_every_sandbox_once,
    listing::pages_are_stable_while_sandboxes_come_and_go,
    listing::filters_by_state_template_metadata_and_start,
    listing::long_filtered_lists_are_read_to_their_end,
    migrations::every_earlier_version_becomes_the_newest,
    migrations::a_database_of_a_newer_version_is_refused_and_left_alone,
    migrations::several_processes_that_start_at_once_make_one_schema,
    observations::logs_are_bounded_and_read_from_both_ends,
    observations::logs_are_filtered_by_level_text_and_time,
    observations::samples_are_a_ring,
    observations::usage_is_summed_up_by_the_minute_and_read_once,
    observations::what_ended_long_ago_is_forgotten,
    races::of_two_changes_of_one_sandbox_one_wins_and_the_other_is_told,
    races::of_two_burials_one_wins,
    races::of_many_requests_with_one_idempotency_key_one_creates,
    races::of_many_rotations_one_wins,
    races::of_many_revocations_one_wins,
    races::epochs_are_never_given_out_twice,
    races::many_writers_of_one_log_lose_no_entry,
    sandboxes::a_sandbox_is_stored_whole,
    sandboxes::a_foreign_sandbox_is_a_missing_one,
    sandboxes::a_change_keeps_what_it_does_not_name,
    sandboxes::a_change_with_an_old_version_or_state_is_lost,
    sandboxes::a_later_start_of_the_server_fences_the_earlier_one,
    sandboxes::a_burial_leaves_a_tombstone_and_no_token,
    sandboxes::idempotency_keys_belong_to_tenants_and_end,
    sandboxes::a_fenced_creation_leaves_no_idempotency_key,
    sandboxes::a_nodes_sandboxes_are_found_again,
    services::an_agent_has_one_session_per_task_and_only_so_many,
    services::grants_are_of_a_tenant_and_go_with_what_they_open,
    services::executions_are_written_twice_and_found_by_what_they_were,
    services::what_ran_is_interrupted_by_the_next_start_and_the_history_ends,
}
