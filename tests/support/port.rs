//! Ports that no two servers of any test process ask for at the same time.

use std::hash::{BuildHasher, RandomState};
use std::net::{Ipv4Addr, TcpListener, UdpSocket};

/// Below the range from which the system takes the ports of outgoing connections (32768 and up on
/// Linux), so that no client sits on one while its server restarts.
const LOWEST: u16 = 11_000;
const COUNT: u16 = 10_000;

/// A cluster node also listens on its port + 10000.
const BUS_OFFSET: u16 = 10_000;

/// A TCP port of 127.0.0.1, held as long as this value lives.
///
/// It is held by a UDP socket on the same number, which leaves the TCP port to the server, keeps it
/// reserved while the server is down, and is given back by the system however the test ends.
pub(super) struct Port {
    number: u16,
    _reservation: UdpSocket,
}

impl Port {
    pub(super) fn reserve() -> Self {
        loop {
            let random = RandomState::new().hash_one(());
            let number = LOWEST + u16::try_from(random % u64::from(COUNT)).unwrap();
            if let Ok(reservation) = UdpSocket::bind((Ipv4Addr::LOCALHOST, number))
                && is_free(number)
                && is_free(number + BUS_OFFSET)
            {
                return Self {
                    number,
                    _reservation: reservation,
                };
            }
        }
    }

    pub(super) fn number(&self) -> u16 {
        self.number
    }
}

fn is_free(port: u16) -> bool {
    TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok()
}
