//! The pages of a master, as commands ask for them: `--master` names its control port, and the master tells where its
//! pages are.

use std::time::Duration;

use mooncake_client::{ErrorKind, MasterInfo, MasterPages, StoreError};
use mooncake_settings::{Given, SettingError};
use serde_json::Value;
use ureq::Agent;
use ureq::http::Response;

/// A master that answers at all does so within this time: it syncs its log before it answers.
const ANSWER_LIMIT: Duration = Duration::from_secs(30);
const CONNECT_LIMIT: Duration = Duration::from_secs(3);

/// Longest answer that is read, bytes.
const ANSWER_BYTES_MAX: u64 = 256 << 20;

/// Names the master where no flag does.
const VARIABLE: &str = "MOONCAKE_MASTER";

/// Port of a master's pages, unless it says another one.
const PORT: u16 = 9003;

/// Why a page is not there.
#[derive(Debug, thiserror::Error)]
pub enum PagesError {
    /// The master.
    #[error("{source}; --master=HOST:PORT or {VARIABLE} name it")]
    Master {
        /// What failed.
        source: StoreError,
    },
    /// Its pages.
    #[error(
        "no answer of a master's pages at {address}: {source}; the master listens there (--metrics_host, \
         --metrics_port), and --metrics_address=HOST:PORT says where that is from here"
    )]
    Unreached {
        /// Where they were looked for.
        address: String,
        /// What failed.
        source: Box<ureq::Error>,
    },
    /// They are on its own host.
    #[error(
        "the master {master} has its pages at {address} of its own host (--metrics_host): call this there, or say with \
         --metrics_address=HOST:PORT where they are from here"
    )]
    Elsewhere {
        /// Which master.
        master: String,
        /// What it said.
        address: String,
    },
    /// They are another's.
    #[error("{address} is of another master than the one that was named: nothing was changed; see --metrics_address")]
    Another {
        /// Where they were found.
        address: String,
    },
    /// It said no.
    #[error("the master at {address} answers: {message}")]
    Refused {
        /// Which.
        address: String,
        /// What it said.
        message: String,
    },
    /// It is no master, or an older one.
    #[error(
        "{address} answers {path} with status {status} and not as this version's masters do: it is another or older one"
    )]
    Odd {
        /// Which.
        address: String,
        /// What was asked for.
        path: String,
        /// Its answer.
        status: u16,
    },
}

/// Why a command that only reads pages has nothing to show.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// The command line.
    #[error(transparent)]
    Setting(#[from] SettingError),
    /// The master.
    #[error(transparent)]
    Pages(#[from] PagesError),
}

fn agent() -> Agent {
    let config = Agent::config_builder()
        .timeout_global(Some(ANSWER_LIMIT))
        .timeout_connect(Some(CONNECT_LIMIT))
        .http_status_as_error(false)
        // A master sends nobody elsewhere, and a proxy of the environment is for hosts outside of the cluster.
        .max_redirects(0)
        .max_redirects_will_error(false)
        .proxy(None)
        .build();
    config.into()
}

/// The control port that `--master` or the environment names.
pub fn master(given: &Given) -> String {
    let variable = || std::env::var(VARIABLE).ok().filter(|value| !value.is_empty());
    let named = given.text("master").map(str::to_owned).or_else(variable);
    named.unwrap_or_else(|| given.text_or_default("master").to_owned())
}

/// The HTTP pages of one master.
pub struct Pages {
    address: String,
    agent: Agent,
    /// The process that told where they are; none where a flag said it, or an older master answered.
    instance: Option<String>,
}

impl Pages {
    /// Asks the master where they are, unless a flag says it.
    pub fn of(given: &Given) -> Result<Pages, PagesError> {
        let named = given.text_or_default("metrics_address");
        match named.strip_prefix("http://").unwrap_or(named).trim_end_matches('/') {
            "" => Pages::told_by(&master(given)),
            named => Ok(Pages { address: named.to_owned(), agent: agent(), instance: None }),
        }
    }

    fn told_by(master: &str) -> Result<Pages, PagesError> {
        let host = master.rsplit_once(':').map_or(master, |(host, _)| host);
        let usual = Pages { address: format!("{host}:{PORT}"), agent: agent(), instance: None };
        match MasterInfo::ask(master) {
            Ok(MasterInfo { pages: MasterPages::At(address), instance, .. }) => {
                Ok(Pages { address, instance: Some(instance), ..usual })
            }
            Ok(MasterInfo { pages: MasterPages::OnItsHostAlone(address), .. }) => {
                Err(PagesError::Elsewhere { master: master.to_owned(), address })
            }
            // An older one does not say: its port is the usual one, or it has to be named.
            Ok(MasterInfo { pages: MasterPages::Untold, .. }) => Ok(usual),
            // One that reads its log is silent at its control port, and tells at its pages that it does.
            Err(source) if matches!(source.kind(), ErrorKind::MasterUnreachable) => match usual.ask("/status") {
                Ok(status) if status["state"] == "recovering" => Ok(usual),
                _ => Err(PagesError::Master { source }),
            },
            Err(source) => Err(PagesError::Master { source }),
        }
    }

    /// What a page answers, if that is a success.
    pub fn ask(&self, path: &str) -> Result<Value, PagesError> {
        self.answer(path, false)
    }

    /// The same of one that changes something.
    pub fn change(&self, path: &str) -> Result<Value, PagesError> {
        // Between the master that was named and its pages may be an address that leads elsewhere.
        if let Some(instance) = &self.instance
            && self.ask("/status")?["instance"] != **instance
        {
            return Err(PagesError::Another { address: self.address.clone() });
        }
        self.answer(path, true)
    }

    fn answer(&self, path: &str, is_change: bool) -> Result<Value, PagesError> {
        let url = format!("http://{}{path}", self.address);
        let unreached = |source| PagesError::Unreached { address: self.address.clone(), source: Box::new(source) };
        let answered = match is_change {
            true => self.agent.post(url).send_empty(),
            false => self.agent.get(url).call(),
        };
        let mut answer: Response<ureq::Body> = answered.map_err(unreached)?;
        let status = answer.status().as_u16();
        let text = answer.body_mut().with_config().limit(ANSWER_BYTES_MAX).read_to_string().map_err(unreached)?;
        let value: Value = serde_json::from_str(&text).map_err(|_| self.odd(path, status))?;
        match (status, value["error_message"].as_str()) {
            (200, _) => Ok(value),
            (_, Some(message)) => {
                Err(PagesError::Refused { address: self.address.clone(), message: message.to_owned() })
            }
            (status, None) => Err(self.odd(path, status)),
        }
    }

    /// An answer that is not what was asked for.
    pub fn odd(&self, path: &str, status: u16) -> PagesError {
        PagesError::Odd { address: self.address.clone(), path: path.to_owned(), status }
    }
}
