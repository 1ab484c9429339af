//! The client against guests that lie, stall, flood and break off. One
//! binary, so that what these modules share is compiled and linked once;
//! `memory` measures its whole process and is therefore another.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "tests fail by panicking"
)]

mod support;

mod cut_anywhere;
mod far_bounds;
mod floods;
mod forwarded_downloads;
mod forwarded_uploads;
mod forwarding;
mod gateway_lanes;
mod liars;
mod lying_downloads;
mod lying_filesystems;
mod lying_lanes;
mod lying_watches;
mod properties;
mod reuse;
