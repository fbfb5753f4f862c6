//! What each client has stored that is still there.
//!
//! No log has it: objects that a master finds in a snapshot of its log count to nobody.

/// Number of a client that stores objects, in the room that an object has for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct WriterNo(pub u16);

impl WriterNo {
    /// Room of one.
    pub const BITS: u32 = u16::BITS;
    /// Not known: it came with a snapshot of the log, or when so many clients had objects that no number was left.
    pub const NOBODY: WriterNo = WriterNo(0);
}

/// Objects of one client.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Stored {
    pub objects: u64,
    /// Of each object once, in however many places it lies.
    pub bytes: u64,
}

#[derive(Debug, Clone, Copy, Default)]
struct Writer {
    stored: Stored,
    /// Its client is over: the number goes with the last object.
    has_left: bool,
}

/// All of them.
#[derive(Debug)]
pub(crate) struct Writers {
    /// By number; the first is nobody.
    all: Vec<Writer>,
    free: Vec<u16>,
}

impl Default for Writers {
    fn default() -> Writers {
        Writers { all: vec![Writer::default()], free: Vec::new() }
    }
}

impl Writers {
    /// A client stores its first object.
    pub fn begin(&mut self) -> WriterNo {
        if let Some(number) = self.free.pop() {
            self.all[usize::from(number)] = Writer::default();
            return WriterNo(number);
        }
        let Ok(number) = u16::try_from(self.all.len()) else { return WriterNo::NOBODY };
        self.all.push(Writer::default());
        WriterNo(number)
    }

    /// A client is over.
    pub fn leave(&mut self, number: WriterNo) {
        if number != WriterNo::NOBODY {
            self.all[usize::from(number.0)].has_left = true;
            self.free_if_bare(number);
        }
    }

    /// An object came that it stored.
    #[inline]
    pub fn add(&mut self, number: WriterNo, bytes: u64) {
        let stored = &mut self.all[usize::from(number.0)].stored;
        stored.objects += 1;
        stored.bytes += bytes;
    }

    /// One of them is no more.
    #[inline]
    pub fn remove(&mut self, number: WriterNo, bytes: u64) {
        let writer = &mut self.all[usize::from(number.0)];
        writer.stored.objects -= 1;
        writer.stored.bytes -= bytes;
        if writer.has_left {
            self.free_if_bare(number);
        }
    }

    /// Of nobody, too.
    pub fn stored(&self, number: WriterNo) -> Stored {
        self.all[usize::from(number.0)].stored
    }

    /// Numbers that clients and objects have.
    pub fn numbers(&self) -> impl Iterator<Item = WriterNo> {
        (0..=u16::MAX).take(self.all.len()).map(WriterNo)
    }

    fn free_if_bare(&mut self, number: WriterNo) {
        if self.all[usize::from(number.0)].stored.objects == 0 {
            self.free.push(number.0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_anothers_once_its_client_and_its_objects_are_gone() {
        let mut writers = Writers::default();
        let (first, second) = (writers.begin(), writers.begin());
        writers.add(first, 5);
        writers.leave(first);
        writers.leave(second);
        assert_eq!(writers.begin(), second, "it had stored nothing");
        assert_ne!(writers.begin(), first, "an object of it is there");
        writers.remove(first, 5);
        let again = writers.begin();
        assert_eq!((again, writers.stored(again)), (first, Stored::default()));
        writers.leave(WriterNo::NOBODY);
    }

    #[test]
    fn clients_beyond_all_numbers_are_nobody() {
        let mut writers = Writers::default();
        let numbers: Vec<WriterNo> = (0..70_000).map(|_| writers.begin()).collect();
        assert_eq!(numbers[65_534], WriterNo(u16::MAX));
        assert_eq!(numbers[65_535], WriterNo::NOBODY);
        writers.add(WriterNo::NOBODY, 7);
        assert_eq!(writers.stored(numbers[69_999]), Stored { objects: 1, bytes: 7 });
    }
}
