//! What this process has mapped at an address.

/// A line of `/proc/self/maps`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MappedRange {
    /// First address.
    pub start: usize,
    /// `rw-`, `---`.
    pub access: String,
}

/// The mapping that has that address.
pub fn mapped_range(addr: usize) -> Option<MappedRange> {
    let maps = std::fs::read_to_string("/proc/self/maps").expect("Linux has it");
    maps.lines().find_map(|line| {
        let (bounds, rest) = line.split_once(' ')?;
        let (start, end) = bounds.split_once('-')?;
        let number = |text| usize::from_str_radix(text, 16).ok();
        let (start, end) = (number(start)?, number(end)?);
        (start..end).contains(&addr).then(|| MappedRange { start, access: rest[..3].to_owned() })
    })
}
