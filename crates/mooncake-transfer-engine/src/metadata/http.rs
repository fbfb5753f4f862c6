//! Documents behind `GET`, `PUT` and `DELETE` of one URL with a key.

use std::net::IpAddr;
use std::time::Duration;

use ureq::Agent;

use super::{Metadata, address_towards};
use crate::error::EngineError;
use crate::protocol::peer_name;

/// A whole request, as Mooncake has it.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(3);
const CONNECT_TIMEOUT: Duration = Duration::from_millis(1500);

/// Longest document that is read, bytes.
const DOCUMENT_BYTES_MAX: u64 = crate::protocol::segment_document::DOCUMENT_BYTES_MAX as u64;

/// Metadata over HTTP: `http://host:port/metadata`, or `https://`.
pub struct HttpMetadata {
    url: String,
    agent: Agent,
}

impl HttpMetadata {
    /// A service at a URL; it is not asked yet.
    pub fn new(url: &str) -> HttpMetadata {
        let config = Agent::config_builder()
            .timeout_global(Some(REQUEST_TIMEOUT))
            .timeout_connect(Some(CONNECT_TIMEOUT))
            .http_status_as_error(false)
            // A service of documents does not choose where else this process connects to.
            .max_redirects(0)
            .max_redirects_will_error(false)
            // A proxy of the environment is for hosts outside of the cluster.
            .proxy(None)
            .build();
        HttpMetadata { url: url.to_owned(), agent: config.into() }
    }

    fn at(&self, key: &str) -> String {
        let mut out = format!("{}?key=", self.url);
        for byte in key.bytes() {
            match byte {
                b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => out.push(char::from(byte)),
                _ => out.push_str(&format!("%{byte:02X}")),
            }
        }
        out
    }

    fn failed(&self, what: &str, error: &ureq::Error) -> EngineError {
        EngineError::Metadata(format!("{what} at {}: {error}", self.url))
    }

    fn odd(&self, what: &str, status: u16, text: &str) -> EngineError {
        let text: String = text.chars().take(200).collect();
        EngineError::Metadata(format!("{what} at {}: status {status}: {}", self.url, text.trim()))
    }
}

impl Metadata for HttpMetadata {
    fn get(&self, key: &str) -> Result<Option<String>, EngineError> {
        let failed = |error: ureq::Error| self.failed("reading", &error);
        let mut answer = self.agent.get(self.at(key)).call().map_err(failed)?;
        let text = answer.body_mut().with_config().limit(DOCUMENT_BYTES_MAX).read_to_string().map_err(failed)?;
        match answer.status().as_u16() {
            200 => Ok(Some(text)),
            404 => Ok(None),
            status => Err(self.odd("reading", status, &text)),
        }
    }

    fn put(&self, key: &str, document: &str) -> Result<bool, EngineError> {
        let failed = |error: ureq::Error| self.failed("writing", &error);
        let request = self.agent.put(self.at(key)).header("Content-Type", "application/json");
        let mut answer = request.send(document).map_err(failed)?;
        match answer.status().as_u16() {
            200 => Ok(true),
            400 => Ok(false),
            status => {
                let text = answer.body_mut().with_config().limit(1 << 16).read_to_string().unwrap_or_default();
                Err(self.odd("writing", status, &text))
            }
        }
    }

    fn remove(&self, key: &str) -> Result<(), EngineError> {
        let answer = self.agent.delete(self.at(key)).call().map_err(|error| self.failed("removing", &error))?;
        match answer.status().as_u16() {
            200 | 404 => Ok(()),
            status => Err(self.odd("removing", status, "")),
        }
    }

    fn own_address(&self) -> Result<IpAddr, EngineError> {
        let wrong = || EngineError::Metadata(format!("{} names no host", self.url));
        let (scheme, rest) = self.url.split_once("://").ok_or_else(wrong)?;
        let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
        let authority = authority.rsplit('@').next().unwrap_or_default();
        let (host, port) = peer_name::split(authority);
        let port = port.unwrap_or(if scheme == "https" { 443 } else { 80 });
        let there = *peer_name::resolve_without_deadline(host, port)?.first().ok_or_else(wrong)?;
        address_towards(there).map_err(|error| EngineError::Metadata(format!("no way to {authority}: {error}")))
    }
}
