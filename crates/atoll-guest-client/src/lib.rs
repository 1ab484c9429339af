//! guest-client
