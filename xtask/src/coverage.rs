use crate::failure::Outcome;
use std::process::ExitCode;
pub(crate) fn coverage() -> Outcome<ExitCode> {
    Ok(ExitCode::SUCCESS)
}
