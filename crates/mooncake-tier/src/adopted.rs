//! A tier that an earlier process has left, and that an owner has beside its own: it is read, and given up first.
//! Nothing is appended to it.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::Arc;
use std::time::Duration;

use mooncake_ids::TierUuid;

use crate::address::{FileNumber, Geometry};
use crate::io_counts::IoCounts;
use crate::medium::Medium;
use crate::proof::{Proof, Proving, ReadBack};
use crate::reader::Reader;
use crate::slots::Slots;
use crate::superblock::Superblock;
use crate::tier::{Tier, TierError};

/// Buffers for what is to be kept of it.
const SLOTS: usize = 2;

pub(crate) struct Adopted<M: Medium> {
    pub medium: M,
    pub reader: Reader<M>,
    /// The files that are left, by their first numbers, with their bytes.
    pub files: BTreeMap<FileNumber, u64>,
    /// The master has mounted it since the anchor began.
    pub is_mounted: bool,
    pub counts: Arc<IoCounts>,
    superblock: Superblock,
    read_back: BTreeMap<FileNumber, ReadBack>,
    lock: M::Lock,
}

impl<M: Medium> Adopted<M> {
    pub fn new(tier: Tier<M>) -> Result<Adopted<M>, TierError> {
        let (medium, superblock, files) = (tier.medium.clone(), tier.superblock.clone(), tier.files.clone());
        let reader = Reader::new(medium.clone(), superblock.geometry, Slots::new(SLOTS))
            .map_err(|source| TierError::Disk { what: "read its files", source })?;
        let (read_back, counts, lock) = (BTreeMap::new(), tier.counts.clone(), tier.into_lock());
        Ok(Adopted { medium, reader, files, is_mounted: false, counts, superblock, read_back, lock })
    }

    pub fn uuid(&self) -> TierUuid {
        self.superblock.tier
    }

    pub fn geometry(&self) -> Geometry {
        self.superblock.geometry
    }

    /// Bytes of its files.
    pub fn bytes(&self) -> u64 {
        self.files.values().sum()
    }

    /// None if the disk had no time for it.
    pub fn proof(&mut self, slots: &Slots, time_left: impl FnMut() -> Duration) -> Option<Proof> {
        let files: Vec<(FileNumber, u64)> = self.files.iter().map(|(file, bytes)| (*file, *bytes)).collect();
        let proving = Proving {
            medium: &self.medium,
            superblock: &self.superblock,
            reader: &mut self.reader,
            slots,
            read_back: &mut self.read_back,
            counts: &self.counts,
        };
        proving.prove(&files, BTreeSet::new(), &BTreeSet::new(), time_left)
    }

    /// No object needs the file.
    pub fn retire(&mut self, file: FileNumber) -> io::Result<()> {
        if self.files.contains_key(&file) {
            match self.medium.remove(&file.name()) {
                // Whoever removed it was there before.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                removed => removed?,
            }
        }
        self.files.remove(&file);
        self.read_back.remove(&file);
        Ok(())
    }

    /// What has to live as long as its files are read.
    pub fn into_lock(self) -> M::Lock {
        self.lock
    }
}
