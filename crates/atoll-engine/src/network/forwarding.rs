//! The switch that lets this host pass packets on between its interfaces.

use super::error::NetworkError;
use super::setting;
use crate::host::{HostObject, creates};

const SWITCH: &str = "net/ipv4/ip_forward";

/// Whether it is on.
pub(super) fn is_on() -> Result<bool, NetworkError> {
    Ok(setting::read(SWITCH)? != "0")
}

/// Switches it on.
pub(super) fn switch_on() -> Result<(), NetworkError> {
    creates(HostObject::ForwardingSwitch, || setting::write(SWITCH, "1"))
}

/// Switches it off.
pub(super) fn switch_off() -> Result<(), NetworkError> {
    setting::write(SWITCH, "0")
}
