use std::process::ExitCode;
use crate::failure::Outcome;
pub(crate) fn coverage() -> Outcome<ExitCode> { Ok(ExitCode::SUCCESS) }
