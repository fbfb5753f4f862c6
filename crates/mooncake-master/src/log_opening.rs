//! The log that a master starts with: found and replayed, begun, or renamed away.

use std::path::{Path, PathBuf};
use std::time::Instant;

use mooncake_core::Epoch;

use crate::log::{Folder, FoundWitness, LogError, Recovered, Sink, Witness, log_id_of, recover};
use crate::machine::start::{self, Found, NextEpoch, NoEpochLeft, Witnessed};
use crate::random;
use crate::replaying::Replaying;
use crate::settings::{LogFolder, Settings, Wal};

/// A log that can be appended to.
#[derive(Debug)]
pub struct Opened {
    /// Where records go.
    pub sink: Sink,
    /// What was found.
    pub found: Recovered,
    /// The one to begin with.
    pub next_epoch: NextEpoch,
}

/// Opens the log that the settings name and replays it; `None` where there is to be none, or can be none.
pub fn open_log(
    settings: &Settings,
    boot_id: &[u8; 16],
    replaying: &mut Replaying,
) -> Result<Option<Opened>, LogError> {
    let path = match &settings.log_folder {
        LogFolder::Given(path) | LogFolder::Default(path) => path,
        LogFolder::None => {
            if settings.wal != Wal::Off {
                tracing::warn!("no log: with any port and without --wal_dir a restart forgets every object");
            }
            return Ok(None);
        }
    };
    if settings.wal == Wal::Off {
        rename_old_log_away(path, &settings.witness_folder)?;
        return Ok(None);
    }
    let folder = match Folder::open(path) {
        Ok(folder) => folder,
        // No operator named this folder, and no old log can be in it: a cache without a log is better than none.
        Err(LogError::Folder { source, .. })
            if matches!(settings.log_folder, LogFolder::Default(_)) && !path.join("current").exists() =>
        {
            tracing::error!(
                path = %path.display(), error = %source,
                "NO LOG: the state folder cannot be made, so a restart will forget every object. \
                 Give a writable folder with --wal_dir, or say --wal=off"
            );
            return Ok(None);
        }
        Err(error) => return Err(error),
    };
    let began = Instant::now();
    let found = recover(&folder.current(), boot_id, replaying)?;
    let fresh = found.is_none();
    let found = found.unwrap_or_else(|| Recovered { log_id: random::number(), ..Recovered::default() });
    let (known, free) = match Witness::find(&settings.witness_folder, found.log_id) {
        Some(FoundWitness { seen, witness }) => (Some(seen), witness),
        None => (None, None),
    };
    if known.is_some() && free.is_none() {
        tracing::error!(
            path = %path.display(),
            "ANOTHER MASTER of this host runs, or stands still, on a copy of this log: end it. Each client that meets \
             both has the epoch raised"
        );
    }
    let log =
        (!fresh).then_some(Found { last_lsn: found.last_lsn, epoch: replaying.epoch, last_boot: found.last_boot });
    let witness = known.map(|seen| Witnessed { seen, held: free.is_none() });
    let start = start::decide(log, boot_id, witness);
    let start = start.map_err(|NoEpochLeft { epoch }| LogError::NoEpochLeft { path: folder.current(), epoch })?;
    let kept = free.filter(|_| start.next_epoch == NextEpoch::Kept);
    let witness = open_witness(&settings.witness_folder, &found, start.highest, kept)?;
    if fresh {
        tracing::info!(path = %path.display(), "no log yet: one begins there");
        if let LogFolder::Default(path) = &settings.log_folder {
            let others = others_of(&settings.cluster_id, path);
            if !others.is_empty() {
                tracing::warn!(
                    others = others.join(" "),
                    "this pool had a log under another port, which is another pool: its objects are not in this one. \
                     --rpc_port chooses it, mooncake state gc removes it"
                );
            }
        }
    } else {
        tracing::info!(
            path = %path.display(), lsn = found.last_lsn, milliseconds = began.elapsed().as_millis() as u64,
            bytes = found.snapshot_bytes + found.log_file_bytes, objects = replaying.core.objects(), "log replayed"
        );
    }
    let sink = Sink::open(folder, found.log_id, found.last_lsn, *boot_id, witness)?;
    Ok(Some(Opened { sink, found, next_epoch: start.next_epoch }))
}

/// The witness of a log from here on, if there can be one: the one that vouches for it, or another. `seen` is the
/// highest epoch known of the log.
fn open_witness(
    folder: &Path,
    found: &Recovered,
    seen: Epoch,
    kept: Option<Witness>,
) -> Result<Option<Witness>, LogError> {
    let opened = match kept {
        Some(mut witness) => {
            witness.store_raised(found.last_lsn, seen).inspect_err(|_| witness.remove()).map(|()| witness)
        }
        // It is written once the raised epoch is in the log. This start may end before that, with a file of this boot
        // in the log, for which what it said must not vouch.
        None => Witness::anew(folder, found.log_id, Some(seen)),
    };
    match opened {
        Ok(witness) => Ok(Some(witness)),
        Err(source) if Witness::find(folder, found.log_id).is_some() => {
            Err(LogError::Io { action: "replacing the witness of the log in", path: folder.to_owned(), source })
        }
        Err(error) => {
            tracing::warn!(%error, "no witness: the next start raises the epoch");
            Ok(None)
        }
    }
}

/// Logs of the same cluster id that lie beside a state folder: those of other ports.
fn others_of(cluster_id: &str, path: &Path) -> Vec<String> {
    let entries = path.parent().and_then(|folder| std::fs::read_dir(folder).ok()).into_iter().flatten();
    let is_other = |other: &PathBuf| {
        let name = other.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let port = name.strip_prefix(cluster_id).and_then(|rest| rest.strip_prefix('-'));
        other != path && port.is_some_and(|port| port.parse::<u16>().is_ok()) && other.join("current").exists()
    };
    let others = entries.filter_map(|entry| Some(entry.ok()?.path())).filter(is_other);
    others.filter_map(|other| Some(other.file_name()?.to_str()?.to_owned())).collect()
}

fn rename_old_log_away(path: &Path, witness_folder: &Path) -> Result<(), LogError> {
    if !path.join("current").exists() {
        return Ok(());
    }
    let folder = Folder::open(path)?;
    let log_id = log_id_of(&folder.current());
    if let Some(away) = folder.rename_away()? {
        if let Some(log_id) = log_id {
            Witness::remove_of(witness_folder, log_id);
        }
        tracing::warn!(renamed_to = %away.display(), "this run has no log: the old one is renamed away and will not be \
            read again");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use mooncake_core::{Config as CoreConfig, Effects, Record, SegmentNo};
    use mooncake_ids::SegmentUuid;
    use tempfile::TempDir;

    use super::*;
    use crate::log::Log;

    const BOOT: [u8; 16] = [7; 16];

    fn opened(settings: &Settings) -> Opened {
        open_log(settings, &BOOT, &mut Replaying::new(CoreConfig::default())).unwrap().unwrap()
    }

    #[test]
    fn a_start_that_ends_before_it_raised_the_epoch_leaves_that_to_the_next_one() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path();
        std::fs::create_dir(folder.join("witness")).unwrap();
        let settings = Settings {
            wal: Wal::On,
            log_folder: LogFolder::Given(folder.join("log")),
            witness_folder: folder.join("witness"),
            ..Settings::default()
        };
        let log_id = opened(&settings).found.log_id;
        let known = Witness::find(&settings.witness_folder, log_id).unwrap();
        known.witness.unwrap().store_raised(50, Epoch::default()).unwrap();
        for start in 1..=3 {
            let opened = opened(&settings);
            assert!(matches!(opened.next_epoch, NextEpoch::Raised(_)), "start {start}");
        }
        let Opened { sink, found, .. } = opened(&settings);
        let log = Log::new(found.log_id, found.last_lsn, Some(sink), false);
        let mut raised = Effects { records: vec![Record::Epoch(2)], ..Effects::default() };
        log.commit(log.enqueue(&mut raised).unwrap(), |_| {}).unwrap();
        drop(log);
        assert_eq!(opened(&settings).next_epoch, NextEpoch::Kept, "the raised epoch is in the log");
    }

    /// The state folder of a master, and what the hosts that it moves between remember of its log.
    struct Hosts(TempDir);

    impl Hosts {
        fn new() -> Hosts {
            Hosts(tempfile::tempdir().unwrap())
        }

        fn settings(&self, host: u8) -> Settings {
            let witness_folder = self.0.path().join(format!("witness-{host}"));
            std::fs::create_dir_all(&witness_folder).unwrap();
            Settings {
                wal: Wal::On,
                log_folder: LogFolder::Given(self.0.path().join("log")),
                witness_folder,
                ..Settings::default()
            }
        }

        fn open(&self, host: u8) -> Result<Opened, LogError> {
            open_log(&self.settings(host), &[host; 16], &mut Replaying::new(CoreConfig::default())).map(Option::unwrap)
        }

        /// One run on a host: it raises the epoch if it must, and appends this many frames. Says to which, or that it
        /// did not have to. A new log begins with the epoch that is given.
        fn run(&self, host: u8, first: u16, frames: usize) -> Option<u16> {
            let opened = self.open(host).unwrap();
            let Opened { sink, found, next_epoch } = opened;
            let raised = next_epoch.raised();
            let log = Log::new(found.log_id, found.last_lsn, Some(sink), false);
            let append = |record| {
                let mut effects = Effects { records: vec![record], ..Effects::default() };
                log.commit(log.enqueue(&mut effects).unwrap(), |_| {}).unwrap();
            };
            if let Some(number) = raised.or((next_epoch == NextEpoch::First).then_some(first)) {
                append(Record::Epoch(number));
            }
            let nothing = Record::SegmentForgotten { uuid: SegmentUuid([1; 16]), number: SegmentNo(1) };
            (0..frames).for_each(|_| append(nothing.clone()));
            raised
        }

        fn last_file(&self) -> std::path::PathBuf {
            let entries = std::fs::read_dir(self.0.path().join("log/current")).unwrap();
            let mut names: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
            names.retain(|path| path.extension().is_some_and(|extension| extension == "wal"));
            names.sort();
            names.pop().unwrap()
        }
    }

    #[test]
    fn a_witness_does_not_vouch_for_a_log_that_another_host_has_cut() {
        let hosts = Hosts::new();
        hosts.run(1, 1, 20);
        assert_eq!(hosts.run(1, 0, 5), None, "the same host, the same boot: nothing is missing");
        assert_eq!(hosts.run(2, 0, 30), Some(2), "host 2 knows nothing of it");
        // Its power fails: the end of what it told is lost.
        let file = hosts.last_file();
        let size = std::fs::metadata(&file).unwrap().len();
        std::fs::File::options().write(true).open(&file).unwrap().set_len(size / 2 - 3).unwrap();
        // Back on host 1, which has not been restarted. Starts that end before the epoch is raised leave that to the
        // next.
        for start in 1..=3 {
            assert_ne!(hosts.open(1).unwrap().next_epoch, NextEpoch::Kept, "start {start}");
        }
        assert_eq!(hosts.run(1, 0, 5), Some(3));
        assert_eq!(hosts.run(1, 0, 5), None, "from here on it is host 1's again");
    }

    #[test]
    fn an_epoch_that_the_host_has_seen_of_a_log_is_not_begun_again_by_an_older_copy_of_it() {
        let hosts = Hosts::new();
        hosts.run(1, 1, 20);
        let (log, copy) = (hosts.0.path().join("log/current"), hosts.0.path().join("copy"));
        copy_files(&log, &copy);
        assert_eq!(hosts.run(2, 0, 30), Some(2));
        assert_eq!(hosts.run(1, 0, 30), Some(3));
        assert_eq!(hosts.run(1, 0, 30), None);
        std::fs::remove_dir_all(&log).unwrap();
        copy_files(&copy, &log);
        // A start that ends before it has raised the epoch leaves what it knew to the next one.
        for start in 1..=2 {
            assert_eq!(hosts.open(1).unwrap().next_epoch.raised(), Some(4), "start {start}");
        }
        assert_eq!(hosts.run(1, 0, 5), Some(4));
        // Host 2 has seen less; the clients that have seen more tell it by the epoch's id.
        std::fs::remove_dir_all(&log).unwrap();
        copy_files(&copy, &log);
        assert_eq!(hosts.run(2, 0, 5), Some(3));
    }

    #[test]
    fn a_log_of_which_nothing_is_left_does_not_begin_its_first_epoch_again() {
        let hosts = Hosts::new();
        hosts.run(1, 1, 20);
        let header = std::fs::File::options().write(true).open(hosts.last_file()).unwrap();
        header.set_len(64).unwrap();
        let opened = hosts.open(2).unwrap();
        assert_eq!((opened.found.last_lsn, opened.next_epoch.raised()), (0, Some(2)));
    }

    fn copy_files(from: &Path, to: &Path) {
        std::fs::create_dir_all(to).unwrap();
        for entry in std::fs::read_dir(from).unwrap() {
            let entry = entry.unwrap();
            std::fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
        }
    }

    #[test]
    fn a_log_without_a_higher_epoch_does_not_start_when_it_needs_one() {
        let hosts = Hosts::new();
        hosts.run(1, 65_535, 3);
        assert_eq!(hosts.run(1, 0, 3), None, "nothing is missing, so that none is needed");
        for start in 1..=2 {
            let refused = hosts.open(2).expect_err("no epoch is left").to_string();
            assert!(refused.contains("65535") && refused.contains("mv "), "start {start}: {refused}");
        }
        std::fs::rename(hosts.0.path().join("log/current"), hosts.0.path().join("moved-away")).unwrap();
        assert_eq!(hosts.open(2).unwrap().next_epoch, NextEpoch::First);
    }
}
