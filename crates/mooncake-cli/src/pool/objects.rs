//! `mooncake ls` and `mooncake stat`: objects, as the master knows them.

use std::fmt::Write;
use std::process::ExitCode;

use mooncake_settings::{Given, LS, STAT};
use serde_json::{Value, json};

use super::pages::{Pages, ReadError};
use super::status::{figure, text};
use crate::flags;
use crate::logging::{print_stderr, say, say_more};
use crate::terminal::{bytes, cut, duration, is_unseen, plain};

/// Objects of one page.
const PAGE: u64 = 10_000;

/// Lists objects whose keys begin so.
pub fn ls(args: impl IntoIterator<Item = String>) -> Result<ExitCode, ReadError> {
    let Some(given) = flags::read(&LS, args)? else { return Ok(ExitCode::SUCCESS) };
    let pages = Pages::of(&given)?;
    let prefix = given.operands.first().map_or(String::new(), |prefix| in_query(prefix, &given));
    let limit = match given.number_or_default::<u64>("limit") {
        0 => u64::MAX,
        limit => limit,
    };
    let (is_json, mut listed, mut from) = (given.boolean("json"), Vec::new(), 0);
    if !is_json {
        say(&format!("{:>9} {:>10} {:<5} {:<24} {}\n", "SIZE", "AGE", "KEEPS", "WHERE", "KEY"));
    }
    let mut count = 0;
    loop {
        let path = format!("/get_objects?prefix={prefix}&limit={}&from={from}", (limit - count).min(PAGE));
        let mut page = pages.ask(&path)?;
        let Some(objects) = page["objects"].as_array_mut() else { return Err(pages.odd("/get_objects", 200).into()) };
        count += objects.len() as u64;
        if is_json {
            listed.append(objects);
        } else {
            if !say_more(&objects.iter().map(line).collect::<String>()) {
                return Ok(ExitCode::SUCCESS);
            }
        }
        let Some(next) = page["next"].as_u64() else { break };
        if count >= limit {
            print_stderr(&format!("mooncake ls: there may be more than {limit}: --limit=0 lists all\n"));
            break;
        }
        from = next;
    }
    if is_json {
        say(&format!("{:#}\n", json!({"objects": listed})));
    }
    Ok(ExitCode::SUCCESS)
}

/// Shows one object.
pub fn stat(args: impl IntoIterator<Item = String>) -> Result<ExitCode, ReadError> {
    let Some(given) = flags::read(&STAT, args)? else { return Ok(ExitCode::SUCCESS) };
    let pages = Pages::of(&given)?;
    let key = &given.operands[0];
    let page = pages.ask(&format!("/get_objects?key={}", in_query(key, &given)))?;
    let Some(objects) = page["objects"].as_array() else { return Err(pages.odd("/get_objects", 200).into()) };
    let Some(object) = objects.first() else {
        print_stderr(&format!("mooncake stat: {}: no such object\n", plain(key)));
        return Ok(ExitCode::FAILURE);
    };
    match given.boolean("json") {
        true => say(&format!("{object:#}\n")),
        false => say(&whole(object)),
    }
    Ok(ExitCode::SUCCESS)
}

/// A key in a query: as its bytes are, or as `ls` prints them.
pub fn in_query(key: &str, given: &Given) -> String {
    let mut out = String::with_capacity(key.len());
    for byte in key.bytes() {
        let is_plain = byte.is_ascii_alphanumeric() || b"-._~/:".contains(&byte);
        match is_plain || byte == b'%' && given.boolean("encoded") {
            true => out.push(byte.into()),
            false => _ = write!(out, "%{byte:02X}"),
        }
    }
    out
}

fn age(object: &Value) -> String {
    object["age_seconds"].as_f64().map_or("-".to_owned(), duration)
}

fn keeps(object: &Value) -> String {
    let marks = [
        (object["pin"] == "soft", 's'),
        (object["pin"] == "hard", 'h'),
        (figure(&object["viewed_replicas"]) > 0.0, 'v'),
        (figure(&object["protected_seconds"]) > 0.0, 'p'),
    ];
    marks.iter().map(|(is_so, mark)| if *is_so { *mark } else { '-' }).collect()
}

/// Where it is read from first, and how many more there are.
fn place(object: &Value) -> String {
    let replicas = object["replicas"].as_array().map_or(&[][..], |all| all);
    let more = replicas.len().saturating_sub(1) + usize::from(object["tier"].is_string() && !replicas.is_empty());
    let more = if more > 0 { format!(" +{more}") } else { String::new() };
    let first = match (replicas.first(), object["tier"].as_str()) {
        (Some(replica), _) => text(&replica["client"]),
        (None, Some(tier)) => format!("disk {}", plain(tier)),
        (None, None) => "-".to_owned(),
    };
    format!("{}{more}", cut(&first, 24 - more.len()))
}

fn line(object: &Value) -> String {
    format!(
        "{:>9} {:>10} {:<5} {:<24} {}\n",
        bytes(figure(&object["size_bytes"])),
        age(object),
        keeps(object),
        place(object),
        key(object)
    )
}

/// As `--encoded` takes it: letters that cannot be seen, or that turn the line around, are percent-encoded as well.
fn key(object: &Value) -> String {
    let mut out = String::new();
    for letter in object["key"].as_str().unwrap_or("").chars() {
        match is_unseen(letter) {
            true => letter.encode_utf8(&mut [0; 4]).bytes().for_each(|byte| _ = write!(out, "%{byte:02X}")),
            false => out.push(letter),
        }
    }
    out
}

fn whole(object: &Value) -> String {
    let mut out = String::new();
    let mut line = |name: &str, text: String| _ = writeln!(out, "{name:<10} {text}");
    line("key", key(object));
    let size = figure(&object["size_bytes"]);
    line("size", format!("{} ({size} bytes)", bytes(size)));
    line(
        "age",
        match object["age_seconds"].as_f64() {
            Some(seconds) => duration(seconds),
            None => "it is older than its master".to_owned(),
        },
    );
    for replica in object["replicas"].as_array().into_iter().flatten() {
        let (client, segment) = (text(&replica["client"]), text(&replica["segment"]));
        let of = if client == segment { String::new() } else { format!(", segment {segment}") };
        line("memory", format!("{client}{of}, {}", text(&replica["state"])));
    }
    if let Some(tier) = object["tier"].as_str() {
        line("disk", plain(tier));
    }
    let pin = text(&object["pin"]);
    if pin != "none" {
        line("pin", pin);
    }
    let viewed = figure(&object["viewed_replicas"]);
    if viewed > 0.0 {
        line("views", format!("readers hold views over {viewed} of its copies: it is not evicted"));
    }
    let protected = figure(&object["protected_seconds"]);
    if protected > 0.0 {
        line("protected", format!("for {} yet, as it was looked up", duration(protected)));
    }
    out
}

#[cfg(test)]
mod tests {
    use mooncake_settings::{CommandLine, parse};

    use super::*;

    fn object() -> Value {
        json!({"key": "a\u{202e}b", "size_bytes": 1_572_864, "age_seconds": 14.0, "tier": "10.0.0.5:1", "pin": "soft",
            "viewed_replicas": 1, "protected_seconds": 0.0,
            "replicas": [{"client": "10.0.0.5:12345", "segment": "10.0.0.5:12345", "state": "live"}]})
    }

    #[test]
    fn an_object_is_one_line_whatever_its_key_is() {
        assert_eq!(line(&object()), "   1.5 MB       14 s s-v-  10.0.0.5:12345 +1        a%E2%80%AEb\n");
        let cold =
            json!({"key": "k", "size_bytes": 5, "age_seconds": null, "tier": "n:1", "pin": "none", "replicas": []});
        assert_eq!(line(&cold), "      5 B          - ----  disk n:1                 k\n");
    }

    #[test]
    fn all_that_is_known_of_it_is_told() {
        let told = whole(&object());
        for part in
            ["1.5 MB (1572864 bytes)", "10.0.0.5:12345, live", "disk       10.0.0.5:1", "pin        soft", "views"]
        {
            assert!(told.contains(part), "{told}");
        }
        assert!(!told.contains("protected"), "{told}");
    }

    #[test]
    fn a_key_is_asked_for_as_its_bytes_are_or_as_it_is_printed() {
        let given = |args: &[&str]| match parse(&LS, args.iter().map(|arg| (*arg).to_owned())).unwrap() {
            CommandLine::Run(given) => given,
            other => panic!("{other:?}"),
        };
        assert_eq!(in_query("a b&c%41/\u{e9}", &given(&[])), "a%20b%26c%2541/%C3%A9");
        assert_eq!(in_query("a%00b c", &given(&["--encoded"])), "a%00b%20c");
    }
}
