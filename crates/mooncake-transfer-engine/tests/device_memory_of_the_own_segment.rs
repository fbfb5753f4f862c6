//! Memory that processors cannot touch, at either end of a transfer within the engine's own segment.

mod memory;

use memory::{Memory, nowhere};
use mooncake_memory::ForeignRange;
use mooncake_test_support::fake_cuda::{DeviceMemory, FakeCuda};
use mooncake_transfer_engine::{Engine, EngineError, EngineOptions, Opcode, PeerId, Request};

/// More than is copied in one go, and no whole number of anything.
const LEN: usize = 9_000_001;

enum Place<'a> {
    Host(Memory),
    Device(DeviceMemory<'a>),
}

impl<'a> Place<'a> {
    fn holding(fake: &'a FakeCuda, device: Option<i32>, seed: u64) -> Place<'a> {
        let host = Memory::filled(LEN, seed);
        match device {
            None => Place::Host(host),
            Some(device) => Place::Device(fake.holding(device, host.bytes())),
        }
    }

    fn range(&self) -> ForeignRange {
        match self {
            Place::Host(memory) => memory.range(),
            Place::Device(memory) => memory.range(),
        }
    }

    fn bytes(&self) -> Vec<u8> {
        match self {
            Place::Host(memory) => memory.bytes().to_vec(),
            Place::Device(memory) => memory.read(),
        }
    }
}

fn request(opcode: Opcode, local: ForeignRange, remote: ForeignRange) -> Request {
    Request { opcode, local, remote: remote.addr() as u64 }
}

#[test]
fn device_bytes_go_to_and_from_the_own_segment() {
    let fake = FakeCuda::load();
    fake.delay(200);
    let engine = Engine::new("127.0.0.1", EngineOptions::default()).unwrap();
    assert_eq!(engine.open(engine.name()).unwrap(), PeerId::SELF);
    for (here, there) in [(None, Some(0)), (Some(0), None), (Some(0), Some(0)), (Some(0), Some(1))] {
        let (local, remote) = (Place::holding(&fake, here, 1), Place::holding(&fake, there, 2));
        engine.register(&[remote.range()], "*").unwrap();
        engine.transfer(PeerId::SELF, &[request(Opcode::Write, local.range(), remote.range())]).unwrap();
        assert!(remote.bytes() == Memory::filled(LEN, 1).bytes(), "{here:?} to {there:?}");
        let fresh = Place::holding(&fake, here, 3);
        engine.transfer(PeerId::SELF, &[request(Opcode::Read, fresh.range(), remote.range())]).unwrap();
        assert!(fresh.bytes() == Memory::filled(LEN, 1).bytes(), "{there:?} to {here:?}");
        engine.unregister(remote.range().addr()).unwrap();
    }
    assert_eq!((fake.count("strays"), fake.count("spoilt")), (0, 0));
}

#[test]
fn what_is_not_there_leaves_the_device_as_it_was() {
    let fake = FakeCuda::load();
    let engine = Engine::new("127.0.0.1", EngineOptions::default()).unwrap();
    let (host, device) = (Place::holding(&fake, None, 1), Place::holding(&fake, Some(0), 2));
    engine.register(&[host.range(), device.range()], "*").unwrap();
    let short = fake.alloc(0, 100);
    let beyond = short.part(0, LEN);
    for (opcode, local, remote) in [
        (Opcode::Write, nowhere(LEN), device.range()),
        (Opcode::Write, beyond, device.range()),
        (Opcode::Read, beyond, device.range()),
        (Opcode::Write, beyond, host.range()),
    ] {
        let failed = engine.transfer(PeerId::SELF, &[request(opcode, local, remote)]);
        assert!(matches!(failed, Err(EngineError::Memory(_))), "{failed:?}");
    }
    assert!(device.bytes() == Memory::filled(LEN, 2).bytes() && host.bytes() == Memory::filled(LEN, 1).bytes());
}
