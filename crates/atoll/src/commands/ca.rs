//! `atoll ca`: the authority that signs the server's certificates, and how to
//! trust it.

use std::path::Path;
use std::process::ExitCode;

use atoll_server::Names;
use atoll_server::tls::Authority;
use serde_json::json;

use crate::arguments::CaArguments;
use crate::failure::Hinted;
use crate::home::Home;

pub(crate) fn ca(home: &Home, arguments: &CaArguments) -> anyhow::Result<ExitCode> {
    let domain = match &arguments.domain {
        Some(domain) => checked(domain)?,
        None => only_domain(home.path())?,
    };
    let authority = Authority::open(home.path(), &domain)?;
    if arguments.json {
        let object = json!({"domain": authority.domain(), "certificate": authority.pem()});
        println!("{object}");
        return Ok(ExitCode::SUCCESS);
    }
    print!("{}", authority.pem());
    eprint!("{}", instructions(authority.domain()));
    Ok(ExitCode::SUCCESS)
}

fn checked(domain: &str) -> anyhow::Result<String> {
    let names = Names::default()
        .with_domain(domain)
        .map_err(|error| Hinted::error(error.to_string(), error.hint()))?;
    // What was given is what comes back, in lower case.
    Ok(names.domain().unwrap_or(domain).to_owned())
}

/// The one domain that this home has an authority for.
fn only_domain(home: &Path) -> anyhow::Result<String> {
    let mut domains = Authority::domains(home)?;
    match (domains.pop(), domains.is_empty()) {
        (Some(domain), true) => Ok(domain),
        (None, _) => Err(Hinted::error(
            "this home has no authority for certificates",
            "`atoll ca --domain my.zone` makes one, as does `atoll serve --domain my.zone`",
        )),
        (Some(last), false) => {
            domains.push(last);
            Err(Hinted::error(
                format!("this home has authorities for {}", domains.join(", ")),
                "choose one with --domain",
            ))
        }
    }
}

fn instructions(domain: &str) -> String {
    format!(
        "\
This authority signs for {domain} and the names below it, and for nothing else.
To trust it, keep the text above as a file and make it known:

  atoll ca > atoll-ca.crt
  # this machine (Debian, Ubuntu); Python's e2b reads this store
  cp atoll-ca.crt /usr/local/share/ca-certificates/ && update-ca-certificates
  # Node, which has a list of its own
  export NODE_EXTRA_CA_CERTS=$PWD/atoll-ca.crt
  # one program that uses OpenSSL; replaces its list
  export SSL_CERT_FILE=$PWD/atoll-ca.crt
"
    )
}
