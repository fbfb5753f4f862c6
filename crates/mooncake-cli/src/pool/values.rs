//! `mooncake put`, `mooncake get` and `mooncake rm`: what a pool stores, from a shell.

use std::fs::File;
use std::io::{self, IsTerminal, Read, Write};
use std::process::ExitCode;

use mooncake_client::{PutOptions, PutOutcome, RemoveOutcome, Source, Store, StoreError, StoreOptions};
use mooncake_settings::{GET, Given, PUT, RM, SettingError};

use super::objects::in_query;
use super::pages::{Pages, PagesError, master};
use crate::flags;
use crate::logging::{self, print_stderr};
use crate::terminal::{bytes, is_unseen, plain};

/// Keys of one call.
const AT_ONCE: usize = 1_000;

/// Why nothing was stored, read or removed.
#[derive(Debug, thiserror::Error)]
pub enum ValuesError {
    /// The command line.
    #[error(transparent)]
    Setting(#[from] SettingError),
    /// The pool.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// A file.
    #[error("{path}: {source}")]
    File {
        /// Which.
        path: String,
        /// What failed.
        source: io::Error,
    },
    /// The master's pages.
    #[error(transparent)]
    Pages(#[from] PagesError),
    /// It would be shown as letters.
    #[error("the object is no text: mooncake get KEY FILE writes it to a file, mooncake get KEY | COMMAND to a pipe")]
    NoText,
    /// There was nothing to store.
    #[error("{0} is empty: an object has at least one byte")]
    Empty(String),
    /// Neither keys nor a prefix, or both.
    #[error("what is to go? mooncake rm KEY ... removes these, mooncake rm --prefix=PREFIX what begins so")]
    NothingNamed,
}

/// Stores a file.
pub fn put(args: impl IntoIterator<Item = String>) -> Result<ExitCode, ValuesError> {
    let Some(given) = flags::read(&PUT, args)? else { return Ok(ExitCode::SUCCESS) };
    let key = key(&given.operands[0], &given);
    let (path, mut value) = (given.operands.get(1).map_or("-", String::as_str), Vec::new());
    let read = match path {
        "-" => io::stdin().lock().read_to_end(&mut value),
        path => File::open(path).and_then(|mut file| file.read_to_end(&mut value)),
    };
    let name = if path == "-" { "the standard input" } else { path }.to_owned();
    read.map_err(|source| ValuesError::File { path: name.clone(), source })?;
    if value.is_empty() {
        return Err(ValuesError::Empty(name));
    }
    let store = connect(&given)?;
    let options = PutOptions {
        replica_num: given.number_or_default("replicas"),
        replace: given.boolean("replace"),
        ..PutOptions::default()
    };
    let outcome = store.put(&key, &[Source::new(&value)], &options);
    store.close();
    let size = bytes(value.len() as f64);
    match outcome? {
        PutOutcome::Existed => {
            let key = plain(&given.operands[0]);
            print_stderr(&format!("mooncake put: {key}: it is there already, and stays; --replace replaces it\n"));
        }
        _ => print_stderr(&format!("stored {size}\n")),
    }
    Ok(ExitCode::SUCCESS)
}

/// Reads an object.
pub fn get(args: impl IntoIterator<Item = String>) -> Result<ExitCode, ValuesError> {
    let Some(given) = flags::read(&GET, args)? else { return Ok(ExitCode::SUCCESS) };
    let store = connect(&given)?;
    let got = store.get(&key(&given.operands[0], &given));
    let why = store.last_miss_cause();
    store.close();
    let Some(value) = got? else {
        let why = why.map_or("no such object".to_owned(), |why| plain(&why));
        print_stderr(&format!("mooncake get: {}: {why}\n", plain(&given.operands[0])));
        return Ok(ExitCode::FAILURE);
    };
    let path = given.operands.get(1).map_or("-", String::as_str);
    if path == "-" && io::stdout().is_terminal() && !is_text(&value) {
        return Err(ValuesError::NoText);
    }
    let written = match path {
        "-" => match io::stdout().write_all(&value).and_then(|()| io::stdout().flush()) {
            // A reader that closed the pipe (`| head`) has read enough.
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
            other => other,
        },
        path => File::create(path).and_then(|mut file| file.write_all(&value)),
    };
    written.map_err(|source| ValuesError::File { path: path.to_owned(), source })?;
    Ok(ExitCode::SUCCESS)
}

/// What a terminal shows as it is, and takes for no command.
fn is_text(value: &[u8]) -> bool {
    let is_letter = |letter: char| matches!(letter, '\n' | '\t') || !is_unseen(letter);
    std::str::from_utf8(value).is_ok_and(|text| text.chars().all(is_letter))
}

/// Removes objects.
pub fn rm(args: impl IntoIterator<Item = String>) -> Result<ExitCode, ValuesError> {
    let Some(given) = flags::read(&RM, args)? else { return Ok(ExitCode::SUCCESS) };
    let prefix = given.text_or_default("prefix");
    if given.operands.is_empty() == prefix.is_empty() {
        return Err(ValuesError::NothingNamed);
    }
    let pages = if prefix.is_empty() { None } else { Some(Pages::of(&given)?) };
    let (store, is_forced) = (connect(&given)?, given.boolean("force"));
    let mut removed = Removed::default();
    let ended = match pages {
        None => given.operands.chunks(AT_ONCE).try_for_each(|words| {
            let keys: Vec<Vec<u8>> = words.iter().map(|word| key(word, &given)).collect();
            removed.these(&store, &keys, is_forced).map_err(ValuesError::Store)
        }),
        Some(pages) => below(&pages, &in_query(prefix, &given), |keys| {
            removed.these(&store, keys, is_forced).map_err(ValuesError::Store)
        }),
    };
    store.close();
    ended?;
    if !prefix.is_empty() {
        print_stderr(&format!("removed {}\n", removed.count));
    }
    Ok(if removed.is_whole { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Has `remove` called with all keys that begin so, some at a time.
fn below(
    pages: &Pages,
    prefix: &str,
    mut remove: impl FnMut(&[Vec<u8>]) -> Result<(), ValuesError>,
) -> Result<(), ValuesError> {
    let mut next = Some(0);
    while let Some(from) = next {
        let page = pages.ask(&format!("/get_objects?prefix={prefix}&limit={AT_ONCE}&from={from}"))?;
        let Some(objects) = page["objects"].as_array() else { return Err(pages.odd("/get_objects", 200).into()) };
        let keys: Vec<Vec<u8>> = objects.iter().filter_map(|object| Some(decoded(object["key"].as_str()?))).collect();
        remove(&keys)?;
        next = page["next"].as_u64();
    }
    Ok(())
}

/// What became of keys.
struct Removed {
    count: usize,
    /// Every key was there, and is gone.
    is_whole: bool,
}

impl Default for Removed {
    fn default() -> Removed {
        Removed { count: 0, is_whole: true }
    }
}

impl Removed {
    fn these(&mut self, store: &Store, keys: &[Vec<u8>], is_forced: bool) -> Result<(), StoreError> {
        for (key, outcome) in keys.iter().zip(store.remove(keys, is_forced)?) {
            let why = match outcome {
                RemoveOutcome::Removed => {
                    self.count += 1;
                    continue;
                }
                RemoveOutcome::Missing => "no such object",
                RemoveOutcome::Protected => "it was looked up a moment ago; --force removes it all the same",
                RemoveOutcome::Busy => "it is being written",
            };
            self.is_whole = false;
            print_stderr(&format!("mooncake rm: {}: {why}\n", plain(&String::from_utf8_lossy(key))));
        }
        Ok(())
    }
}

/// A client of the pool that lends nothing.
pub fn connect(given: &Given) -> Result<Store, StoreError> {
    logging::start_at("WARNING");
    let mut options = StoreOptions::new("localhost", master(given)).from_env()?;
    // What were placed there would go with this process.
    options.global_segment_size = 0;
    Store::connect(options)
}

/// A key as it is, or as `mooncake ls` prints it.
fn key(word: &str, given: &Given) -> Vec<u8> {
    if given.boolean("encoded") { decoded(word) } else { word.as_bytes().to_vec() }
}

fn decoded(word: &str) -> Vec<u8> {
    percent_encoding::percent_decode_str(word).collect()
}

#[cfg(test)]
mod tests {
    use mooncake_settings::{CommandLine, parse};

    use super::*;

    #[test]
    fn a_key_is_taken_as_it_is_or_as_it_is_printed() {
        let given = |args: &[&str]| match parse(&GET, args.iter().map(|arg| (*arg).to_owned())).unwrap() {
            CommandLine::Run(given) => given,
            other => panic!("{other:?}"),
        };
        assert_eq!(key("a%00%zz%", &given(&["k"])), b"a%00%zz%");
        assert_eq!(key("a%00%fF%zz%4", &given(&["k", "--encoded"])), b"a\0\xff%zz%4");
    }

    #[test]
    fn a_command_that_names_nothing_is_refused_before_a_master_is_asked() {
        let said = |args: &[&str]| rm(args.iter().map(|arg| (*arg).to_owned())).unwrap_err().to_string();
        assert!(said(&[]).starts_with("what is to go?"));
        assert!(said(&["k", "--prefix=a"]).starts_with("what is to go?"));
        let empty = put(["k", "/dev/null"].map(str::to_owned)).unwrap_err().to_string();
        assert_eq!(empty, "/dev/null is empty: an object has at least one byte");
        let lacks = put([]).unwrap_err().to_string();
        assert!(lacks.contains("which KEY?"), "{lacks}");
    }
}
