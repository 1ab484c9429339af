//! Which isolation a sandbox of this home gets.

use std::path::PathBuf;

use atoll_control::isolation::{Choice, Wish, decide, probe};
use atoll_engine::{Tier, TierVerdict, remember_verdict, remembered_verdict};

use crate::arguments::Isolation;
use crate::failure::Hinted;
use crate::home::Home;

/// Decides for a sandbox of `layers`: by what was typed, else by what is configured.
pub(super) async fn choose(
    home: &Home,
    typed: Option<Isolation>,
    layers: &[PathBuf],
    user: &str,
) -> anyhow::Result<Choice> {
    let wish: Wish = typed.unwrap_or_else(|| home.isolation()).into();
    let verdict = async {
        match home.runsc() {
            Some(runsc) => match remembered_verdict(home.path(), &runsc) {
                Some(verdict) => verdict,
                None => gvisor(home, layers, user).await,
            },
            None => absent(),
        }
    };
    let choice = decide(wish, home.minimum_isolation(), verdict)
        .await
        .map_err(|refusal| Hinted::error(refusal.to_string(), refusal.hint))?;
    if wish == Wish::Strongest && choice.tier < Tier::Gvisor && home.runsc().is_some() {
        // Installed, and still not used: whoever did that wants to know.
        eprintln!(
            "warning: not on gVisor but in a container: {}",
            choice.reason
        );
    }
    Ok(choice)
}

fn absent() -> TierVerdict {
    TierVerdict::Refused {
        reason: "`runsc` is not installed".to_owned(),
    }
}

/// Tries gVisor anew, and remembers what came of it.
pub(super) async fn gvisor(home: &Home, layers: &[PathBuf], user: &str) -> TierVerdict {
    let Some(runsc) = home.runsc() else {
        return absent();
    };
    let tried = match home.runtime(Tier::Gvisor) {
        Ok(runtime) => probe(&runtime, layers, user).await,
        Err(error) => {
            return TierVerdict::Refused {
                reason: format!("{error:#}"),
            };
        }
    };
    let verdict = match &tried {
        Ok(time) => TierVerdict::Usable {
            milliseconds: u64::try_from(time.as_millis()).unwrap_or(u64::MAX),
        },
        Err(failure) => TierVerdict::Refused {
            reason: failure.to_string(),
        },
    };
    if tried.is_err_and(|failure| !failure.is_lasting) {
        return verdict;
    }
    if let Err(error) = remember_verdict(home.path(), &runsc, &verdict) {
        eprintln!("warning: cannot remember that gVisor was tried: {error}");
    }
    verdict
}
