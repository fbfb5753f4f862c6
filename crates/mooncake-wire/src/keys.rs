//! Keys of a batch as one blob and a list of lengths.

use bytes::BytesMut;

use crate::message::Keys;

/// Longest key, bytes. Engines use 100 to 250.
pub const KEY_BYTES_MAX: usize = 64 << 10;

/// Most keys in one batch.
pub const BATCH_MAX: usize = 1 << 20;

/// Why a batch of keys was refused.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum KeysError {
    /// The message has no keys field.
    #[error("request names no keys")]
    Missing,
    /// Lengths and blob disagree.
    #[error("key lengths sum to {lengths} bytes, the blob has {blob}")]
    Mismatch {
        /// Sum of the lengths, bytes.
        lengths: u64,
        /// Length of the blob, bytes.
        blob: u64,
    },
    /// A key is empty or too long.
    #[error("key {index} has {length} bytes; keys have 1 to {KEY_BYTES_MAX}")]
    Length {
        /// Position in the batch.
        index: usize,
        /// Its length, bytes.
        length: usize,
    },
    /// Groups, but not one per key.
    #[error("{groups} groups for {keys} keys")]
    Groups {
        /// Groups given.
        groups: usize,
        /// Keys in the batch.
        keys: usize,
    },
    /// Too many keys.
    #[error("batch of {count} keys, the limit is {BATCH_MAX}")]
    TooMany {
        /// Keys in the batch.
        count: usize,
    },
}

/// Packs keys for a request.
pub fn pack_keys<K: AsRef<[u8]>>(keys: &[K]) -> Keys {
    let mut blob = BytesMut::with_capacity(keys.iter().map(|k| k.as_ref().len()).sum());
    let mut lengths = Vec::with_capacity(keys.len());
    for key in keys {
        blob.extend_from_slice(key.as_ref());
        lengths.push(key.as_ref().len() as u32);
    }
    Keys { blob: blob.freeze(), lengths }
}

/// Checks the groups of a batch's keys: none at all, or one per key, of which an empty one is none.
pub fn unpack_groups(groups: &Option<Keys>, keys: usize) -> Result<Vec<Box<[u8]>>, KeysError> {
    let Some(groups) = groups else { return Ok(Vec::new()) };
    if groups.lengths.len() != keys {
        return Err(KeysError::Groups { groups: groups.lengths.len(), keys });
    }
    let sum = groups.lengths.iter().map(|length| u64::from(*length)).sum();
    if sum != groups.blob.len() as u64 {
        return Err(KeysError::Mismatch { lengths: sum, blob: groups.blob.len() as u64 });
    }
    if let Some(index) = groups.lengths.iter().position(|length| *length as usize > KEY_BYTES_MAX) {
        return Err(KeysError::Length { index, length: groups.lengths[index] as usize });
    }
    let mut rest = &groups.blob[..];
    let mut names = Vec::with_capacity(keys);
    for length in &groups.lengths {
        let (name, others) = rest.split_at(*length as usize);
        names.push(name.into());
        rest = others;
    }
    Ok(names)
}

/// Keys of a batch that was checked, as slices of its blob.
#[derive(Debug, Clone)]
pub struct UnpackedKeys<'a> {
    blob: &'a [u8],
    lengths: std::slice::Iter<'a, u32>,
}

impl<'a> Iterator for UnpackedKeys<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        let (key, rest) = self.blob.split_at(*self.lengths.next()? as usize);
        self.blob = rest;
        Some(key)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.lengths.size_hint()
    }
}

impl ExactSizeIterator for UnpackedKeys<'_> {}

/// Checks a batch and yields its keys as slices of the blob.
pub fn unpack_keys(keys: &Option<Keys>) -> Result<UnpackedKeys<'_>, KeysError> {
    let keys = keys.as_ref().ok_or(KeysError::Missing)?;
    if keys.lengths.len() > BATCH_MAX {
        return Err(KeysError::TooMany { count: keys.lengths.len() });
    }
    let mut sum = 0;
    for (index, &length) in keys.lengths.iter().enumerate() {
        if length == 0 || length as usize > KEY_BYTES_MAX {
            return Err(KeysError::Length { index, length: length as usize });
        }
        sum += u64::from(length);
    }
    if sum != keys.blob.len() as u64 {
        return Err(KeysError::Mismatch { lengths: sum, blob: keys.blob.len() as u64 });
    }
    Ok(UnpackedKeys { blob: &keys.blob, lengths: keys.lengths.iter() })
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;

    #[test]
    fn keys_come_back_as_they_went() {
        let keys: Vec<Vec<u8>> = vec![b"a".to_vec(), b"/@:\0\xff".to_vec(), vec![7; KEY_BYTES_MAX]];
        let packed = Some(pack_keys(&keys));
        let got: Vec<Vec<u8>> = unpack_keys(&packed).unwrap().map(<[u8]>::to_vec).collect();
        assert_eq!(got, keys);
    }

    #[test]
    fn lengths_that_lie_are_refused() {
        for lengths in [vec![1, 1, 1], vec![u32::MAX], vec![0, 2], vec![3]] {
            let keys = Some(Keys { blob: Bytes::from_static(b"ab"), lengths });
            assert!(unpack_keys(&keys).is_err());
        }
        assert!(unpack_keys(&None).is_err());
    }
}
