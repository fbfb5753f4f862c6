//! Whether the memory of each member answers where the member says that it is.

use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use super::answer::Answer;
use super::finding::{Area, Finding, Findings};
use super::listeners::Listeners;
use super::member::{Member, resolve};
use super::pool::Pool;

/// Members that are tried; the others are counted.
const TRIED: usize = 64;

/// Longest wait for one of them.
const CONNECTING: Duration = Duration::from_millis(1_500);

/// Members that are named; the others are counted.
const NAMED: usize = 5;

/// How a member answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reach {
    /// It listens.
    Answers,
    /// Its name has no address here.
    NoAddress,
    /// It does not.
    Fails(String),
}

/// What was read.
#[derive(Debug, Clone, Default)]
pub struct Reached {
    /// Members that lend, with how they answer.
    pub members: Vec<(Member, Reach)>,
    /// How many more there are.
    pub untried: usize,
}

impl Reached {
    /// Tries them all at once. One of this host's that the kernel knows to listen is not: an owner logs a peer that
    /// connects and says nothing.
    pub fn read(pool: &Pool, listeners: &Listeners) -> Reached {
        let present = || pool.lenders().filter(|member| member.is_present);
        let tried: Vec<(Member, Answer<Reach>)> = present()
            .take(TRIED)
            .map(|member| {
                let (name, listeners) = (member.name.clone(), member.is_here.then(|| listeners.clone()));
                (member.clone(), Answer::of(move || reach(&name, listeners.as_ref())))
            })
            .collect();
        let untried = present().count() - tried.len();
        let late = || Reach::Fails("no answer".to_owned());
        let members = tried.into_iter().map(|(member, reach)| (member, reach.wait().unwrap_or_else(late))).collect();
        Reached { members, untried }
    }
}

/// Connects and hangs up, unless it is known to listen here.
fn reach(name: &str, listeners: Option<&Listeners>) -> Reach {
    let port = name.rsplit_once(':').and_then(|(_, port)| port.parse().ok());
    let (addresses, Some(port)) = (resolve(name), port) else { return Reach::NoAddress };
    // One that is not listed may be there all the same, where the host's rules lead to a container of it.
    if listeners.is_some_and(|listeners| listeners.has(port)) {
        return Reach::Answers;
    }
    let mut last = Reach::NoAddress;
    for address in addresses.into_iter().take(2) {
        match TcpStream::connect_timeout(&SocketAddr::new(address, port), CONNECTING) {
            Ok(_) => return Reach::Answers,
            Err(error) => last = Reach::Fails(error.to_string()),
        }
    }
    last
}

/// Judges it.
pub fn judge(read: &Reached) -> Vec<Finding> {
    let mut found = Findings::of(Area::Addresses);
    let tried = read.members.len();
    let silent = || read.members.iter().filter(|(_, reach)| *reach != Reach::Answers);
    // One of this host answers there, whatever its own host is called.
    let lost: Vec<String> = silent().filter(|(member, _)| is_loopback_of_another_host(member)).map(one).collect();
    let silent: Vec<String> = silent().filter(|(member, _)| !is_loopback_of_another_host(member)).map(one).collect();
    if !lost.is_empty() {
        found.error(
            "loopback_members",
            format!("members of other hosts announce a loopback address ({}): {}", lost.len(), told(&lost)),
            "start them again with an address of their host: mooncake_client --host=ADDRESS, local_hostname of engines",
        );
    }
    if !silent.is_empty() {
        found.error(
            "members",
            format!(
                "members that lend memory do not answer at their data ports ({} of {tried}), and gets from there are \
                 misses: {}",
                silent.len(),
                told(&silent)
            ),
            "let firewalls pass the data ports (12300-14300 unless configured), and give each member an address that \
             this host reaches (--host, local_hostname)",
        );
    }
    if tried > 0 && lost.len() + silent.len() == 0 {
        let untried = if read.untried > 0 { format!("; {} more were not tried", read.untried) } else { String::new() };
        found.ok(
            "members",
            format!("members that lend memory answer at their data ports ({tried} of {tried}{untried})"),
        );
    }
    found.sorted()
}

fn is_loopback_of_another_host(member: &Member) -> bool {
    member.address.is_some_and(|address| address.is_loopback()) && !member.is_here
}

/// `10.0.0.7:12300 on h7: Connection refused`
fn one((member, reach): &(Member, Reach)) -> String {
    let why = match reach {
        Reach::Answers => String::new(),
        Reach::NoAddress => ": its name has no address here".to_owned(),
        Reach::Fails(why) => format!(": {why}"),
    };
    format!("{} on {}{why}", member.name, member.host)
}

fn told(all: &[String]) -> String {
    let named = all.iter().take(NAMED).cloned().collect::<Vec<_>>().join("; ");
    match all.len().saturating_sub(NAMED) {
        0 => named,
        more => format!("{named}; and {more} more"),
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use serde_json::json;

    use super::*;
    use crate::doctor::broken::{self, client};
    use crate::doctor::finding::{Severity, told};

    fn judged(members: &[(&str, &str, Reach)]) -> Vec<Finding> {
        let mut status = broken::status();
        status["clients"] = members.iter().map(|(name, host, _)| client(name, host, 9)).collect();
        let pool = broken::pool(status);
        let reached = pool.members.into_iter().zip(members.iter().map(|(_, _, reach)| reach.clone())).collect();
        judge(&Reached { members: reached, untried: 3 })
    }

    #[test]
    fn members_that_answer_are_well() {
        let found = judged(&[("127.0.0.1:1", "h1", Reach::Answers), ("127.0.0.1:2", "container", Reach::Answers)]);
        told::is(&found, "members", Severity::Ok, &["(2 of 2; 3 more were not tried)"]);
        assert!(judge(&Reached::default()).is_empty());
    }

    #[test]
    fn a_member_that_does_not_answer_is_an_error_with_its_name_and_reason() {
        let refused = Reach::Fails("Connection refused".to_owned());
        let found = judged(&[("192.0.2.7:12300", "h7", refused), ("n:1", "h8", Reach::NoAddress)]);
        let says = ["2 of 2", "192.0.2.7:12300 on h7: Connection refused", "n:1 on h8: its name", "12300-14300"];
        told::is(&found, "members", Severity::Error, &says);
    }

    #[test]
    fn a_loopback_address_of_another_host_is_an_error_of_its_own() {
        let refused = Reach::Fails("Connection refused".to_owned());
        let found = judged(&[("127.0.0.1:12300", "h7", refused.clone()), ("127.0.0.1:2", "h1", refused)]);
        told::is(&found, "loopback_members", Severity::Error, &["(1)", "on h7", "--host=ADDRESS"]);
        told::is(&found, "members", Severity::Error, &["1 of 2", "127.0.0.1:2 on h1"]);
    }

    #[test]
    fn many_members_are_counted() {
        let all = vec![("192.0.2.7:12300", "h7", Reach::Fails("no".to_owned())); 8];
        told::is(&judged(&all), "members", Severity::Error, &["8 of 8", "and 3 more"]);
    }

    #[test]
    fn real_ports_answer_or_do_not() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let name = listener.local_addr().unwrap().to_string();
        let pool = broken::pool(json!({"clients": [client(&name, "h1", 9), client(&name, "h7", 9)]}));
        let read = || Reached::read(&pool, &Listeners::read()).members.into_iter().map(|(_, reach)| reach);
        assert_eq!(read().collect::<Vec<_>>(), [Reach::Answers, Reach::Answers]);
        assert_eq!(reach(&name, Some(&Listeners::default())), Reach::Answers, "whatever the kernel lists");
        drop(listener);
        assert!(read().all(|reach| matches!(reach, Reach::Fails(_))));
        assert_eq!(reach("nowhere.invalid:1", None), Reach::NoAddress);
        assert_eq!(reach("127.0.0.1", None), Reach::NoAddress);
    }
}
