//! What goes over the carrier: a header of 36 bytes, and a payload. Reading one never panics, whatever the bytes are.
//!
//! All numbers are big-endian:
//!
//! | bytes | field | meaning |
//! |---|---|---|
//! | 0 | version | 1 |
//! | 1 | kind | see [`Kind`] |
//! | 2..4 | flags | bit 0: from the node; bit 1: this `ack` answers a `ping`; bit 2: this `ctl` confirms one |
//! | 4..12 | pipe | the number of the pipe, so that a frame of an older pipe finds nothing |
//! | 12..20 | offset | of the payload; in `ack`, `nack` and `ping` of what is sent next; in `ctl` its number |
//! | 20..28 | ack | the offset that the sender of the frame expects next: all before it has arrived |
//! | 28..32 | window | so many bytes from `ack` on the peer may send |
//! | 32..36 | crc32c | of the frame, with zeros here |

use std::fmt;

use bytes::{Bytes, BytesMut};

use crate::mutants::{Check, enabled};

/// The version of this format.
pub const VERSION: u8 = 1;
/// A frame begins with so many bytes that are not payload.
pub const HEADER_BYTES: usize = 36;
/// No frame is longer than this, its header included.
pub const MAX_FRAME_BYTES: usize = 64 * 1024;
/// Where the checksum stands in the header.
const CRC_AT: usize = 32;

/// From the node to the edge, not the other way: so a carrier that returns frames to their sender does no harm.
pub(crate) const FROM_NODE: u16 = 1;
/// An `ack` that answers a `ping`.
pub(crate) const ANSWER: u16 = 2;
/// A `ctl` without payload that confirms the one with this number.
pub(crate) const CONFIRMS: u16 = 4;

/// What a frame is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Bytes of the stream.
    Data = 0,
    /// Only what every frame tells: what has arrived, and how much may be sent.
    Ack = 1,
    /// As `Ack`, and something from there on is missing.
    Nack = 2,
    /// Asks for a sign of life. It holds eight bytes, which the answer gives back.
    Ping = 3,
    /// The stream ends here. It takes one offset, so that it is acknowledged like a byte.
    Fin = 4,
    /// The pipe is dead. The payload says why.
    Rst = 5,
    /// A message beside the stream, of which only the latest counts.
    Ctl = 6,
}

impl Kind {
    fn of(byte: u8) -> Option<Kind> {
        const ALL: [Kind; 7] =
            [Kind::Data, Kind::Ack, Kind::Nack, Kind::Ping, Kind::Fin, Kind::Rst, Kind::Ctl];
        ALL.get(usize::from(byte)).copied()
    }
}

/// The fields of a frame, without its payload and checksum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// What the frame is for.
    pub kind: Kind,
    /// See the table above.
    pub flags: u16,
    /// The number of the pipe.
    pub pipe: u64,
    /// Where the payload belongs.
    pub offset: u64,
    /// All before this offset has arrived at the frame's sender.
    pub ack: u64,
    /// So many bytes from `ack` on may be sent.
    pub window: u32,
}

/// Why a frame was dropped. The pipe is as it was before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rejected {
    /// It is shorter than a header, longer than a frame may be, or has a payload where none belongs.
    Length,
    /// Another version of the format.
    Version,
    /// No kind has this number.
    Kind,
    /// The bytes are not those that were sent.
    Checksum,
    /// It is of another pipe.
    OtherPipe,
    /// It comes from this end.
    OwnFrame,
    /// It says that bytes have arrived that were not sent.
    Ack,
    /// It has bytes that cannot belong there: beyond the end of the stream, or a part of a frame that has arrived.
    Offset,
    /// It has more bytes than this end has offered to take.
    Credit,
}

impl fmt::Display for Rejected {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Rejected::Length => "its length is wrong",
            Rejected::Version => "it is of another version",
            Rejected::Kind => "its kind is unknown",
            Rejected::Checksum => "its checksum is wrong",
            Rejected::OtherPipe => "it is of another pipe",
            Rejected::OwnFrame => "it comes from this end",
            Rejected::Ack => "it confirms what was not sent",
            Rejected::Offset => "its offset is impossible",
            Rejected::Credit => "it has more than was asked for",
        })
    }
}

impl std::error::Error for Rejected {}

/// Reads a frame. The payload is what follows [`HEADER_BYTES`].
pub fn read(frame: &[u8]) -> Result<Header, Rejected> {
    if frame.len() > MAX_FRAME_BYTES {
        return Err(Rejected::Length);
    }
    let (header, payload) = frame.split_first_chunk::<HEADER_BYTES>().ok_or(Rejected::Length)?;
    if enabled(Check::Version) && header[0] != VERSION {
        return Err(Rejected::Version);
    }
    let kind = Kind::of(header[1]).ok_or(Rejected::Kind)?;
    let crc = u32::from_be_bytes(*field(header, CRC_AT));
    if enabled(Check::Checksum) && crc != checksum(header, payload) {
        return Err(Rejected::Checksum);
    }
    Ok(Header {
        kind,
        flags: u16::from_be_bytes(*field(header, 2)),
        pipe: u64::from_be_bytes(*field(header, 4)),
        offset: u64::from_be_bytes(*field(header, 12)),
        ack: u64::from_be_bytes(*field(header, 20)),
        window: u32::from_be_bytes(*field(header, 28)),
    })
}

/// A frame with this payload.
pub fn frame(header: &Header, payload: &[u8]) -> Bytes {
    let mut frame = begin(payload.len());
    frame.extend_from_slice(payload);
    finish(header, frame)
}

/// Room for a header and so many bytes of payload, which the caller appends.
pub(crate) fn begin(payload_bytes: usize) -> BytesMut {
    let mut frame = BytesMut::with_capacity(HEADER_BYTES + payload_bytes);
    frame.resize(HEADER_BYTES, 0);
    frame
}

/// Fills in the header in front of a payload.
pub(crate) fn finish(header: &Header, mut frame: BytesMut) -> Bytes {
    frame[0] = VERSION;
    frame[1] = header.kind as u8;
    frame[2..4].copy_from_slice(&header.flags.to_be_bytes());
    frame[4..12].copy_from_slice(&header.pipe.to_be_bytes());
    frame[12..20].copy_from_slice(&header.offset.to_be_bytes());
    frame[20..28].copy_from_slice(&header.ack.to_be_bytes());
    frame[28..CRC_AT].copy_from_slice(&header.window.to_be_bytes());
    let (head, payload) = frame.split_at(HEADER_BYTES);
    let crc = checksum(head, payload);
    frame[CRC_AT..HEADER_BYTES].copy_from_slice(&crc.to_be_bytes());
    frame.freeze()
}

fn checksum(header: &[u8], payload: &[u8]) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(&header[..CRC_AT]), payload)
}

fn field<const N: usize>(header: &[u8; HEADER_BYTES], at: usize) -> &[u8; N] {
    header[at..].first_chunk().expect("fields lie inside of the header")
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEADER: Header =
        Header { kind: Kind::Data, flags: FROM_NODE, pipe: 7, offset: 1 << 40, ack: 3, window: 1 << 20 };

    #[test]
    fn a_frame_is_read_as_it_was_written() {
        for payload in [&b""[..], b"x", &[7; MAX_FRAME_BYTES - HEADER_BYTES]] {
            let frame = frame(&HEADER, payload);
            assert_eq!(read(&frame), Ok(HEADER));
            assert_eq!(&frame[HEADER_BYTES..], payload);
        }
    }

    #[test]
    fn the_bytes_of_a_frame_stay_what_they_are() {
        let frame = frame(&HEADER, b"{}\n");
        let hex: String = frame.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(hex, "010000010000000000000007000001000000000000000000000000030010000087f91b7c7b7d0a");
    }

    #[test]
    fn a_changed_bit_is_noticed_wherever_it_is() {
        let good = frame(&HEADER, b"hello");
        for bit in 0..good.len() * 8 {
            let mut bad = good.to_vec();
            bad[bit / 8] ^= 1 << (bit % 8);
            assert!(read(&bad).is_err(), "bit {bit}");
        }
    }

    #[test]
    fn what_is_no_frame_is_rejected() {
        let good = frame(&HEADER, b"hello");
        assert_eq!(read(&[]), Err(Rejected::Length));
        assert_eq!(read(&good[..HEADER_BYTES - 1]), Err(Rejected::Length));
        assert_eq!(read(&good[..HEADER_BYTES]), Err(Rejected::Checksum));
        assert_eq!(read(&vec![1; MAX_FRAME_BYTES + 1]), Err(Rejected::Length));
        assert_eq!(read(&[2; HEADER_BYTES]), Err(Rejected::Version));
        assert_eq!(read(&[[VERSION, 7].as_slice(), &[0; 40]].concat()), Err(Rejected::Kind));
    }
}
