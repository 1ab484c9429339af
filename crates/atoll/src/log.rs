//! Warnings of the layers below, on standard error. The monitor's standard
//! error is `monitor.log` in the home.

use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;

/// Starts writing warnings, once per process.
pub(crate) fn start() {
    let quiet = Targets::new()
        .with_default(LevelFilter::WARN)
        // It warns of every container that `noNewPrivileges` is not set, which is on purpose.
        .with_target("libcontainer", LevelFilter::ERROR)
        .with_target("libcgroups", LevelFilter::ERROR);
    let lines = tracing_subscriber::fmt::layer()
        .with_writer(std::io::stderr)
        .with_ansi(false);
    tracing_subscriber::registry()
        .with(lines)
        .with(quiet)
        .init();
}
