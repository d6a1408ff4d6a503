//! A kernel as it is before it is packed: an ELF file, which is all that some monitors start.
//!
//! ```text
//! vmlinuz   setup sectors | program that unpacks | payload: the ELF file, packed, and its size
//! ```
//! The places are those of the kernel's own text on its boot protocol (`x86/boot`).

use std::io::{self, Read as _};

use flate2::read::GzDecoder;

const SECTOR: usize = 512;
const SETUP_SECTORS: usize = 0x1F1;
const MAGIC: (usize, &[u8]) = (0x202, b"HdrS");
const PAYLOAD: usize = 0x248;
const ELF: &[u8] = b"\x7fELF";
const GZIP: &[u8] = &[0x1F, 0x8B];
/// Of the format that `lz4 -l` writes: blocks with their lengths, each of 8 MiB unpacked.
const LZ4: &[u8] = &[0x02, 0x21, 0x4C, 0x18];
const LZ4_BLOCK: usize = 8 * 1024 * 1024;
/// Unpacked, a kernel for clouds has 60 MB.
const MAX_BYTES: usize = 512 * 1024 * 1024;

/// The ELF file in it; one that is none needs no unpacking.
pub(super) fn unpacked(image: Vec<u8>) -> io::Result<Vec<u8>> {
    if image.starts_with(ELF) {
        return Ok(image);
    }
    let plain = unpack(payload(&image).ok_or_else(|| fault("it is no kernel of x86"))?)?;
    if plain.starts_with(ELF) { Ok(plain) } else { Err(fault("it holds no ELF file")) }
}

fn payload(image: &[u8]) -> Option<&[u8]> {
    let (at, magic) = MAGIC;
    image.get(at..)?.starts_with(magic).then_some(())?;
    // No sectors are four, as they were when nobody wrote it down.
    let sectors = match usize::from(*image.get(SETUP_SECTORS)?) {
        0 => 4,
        count => count,
    };
    let start =
        sectors.checked_add(1)?.checked_mul(SECTOR)?.checked_add(number(image, PAYLOAD)?)?;
    let end = start.checked_add(number(image, PAYLOAD + 4)?)?;
    image.get(start..end)
}

fn unpack(payload: &[u8]) -> io::Result<Vec<u8>> {
    if payload.starts_with(ELF) {
        return Ok(payload.to_vec());
    }
    // The size that it will have stands behind all of them.
    let packed = payload.len().checked_sub(4).and_then(|end| payload.get(..end));
    let packed = packed.ok_or_else(|| fault("it is cut off"))?;
    if packed.starts_with(GZIP) {
        let mut plain = Vec::new();
        let most = u64::try_from(MAX_BYTES).unwrap_or(u64::MAX);
        GzDecoder::new(packed).take(most).read_to_end(&mut plain)?;
        return Ok(plain);
    }
    match packed.strip_prefix(LZ4) {
        Some(blocks) => lz4(blocks),
        None => Err(fault("it is packed neither with LZ4 nor with gzip")),
    }
}

fn lz4(mut blocks: &[u8]) -> io::Result<Vec<u8>> {
    let mut plain = Vec::new();
    let mut block = vec![0; LZ4_BLOCK];
    while !blocks.is_empty() {
        let length = number(blocks, 0).ok_or_else(|| fault("it is cut off"))?;
        let rest = blocks.get(4..).and_then(|rest| rest.split_at_checked(length));
        let (packed, rest) = rest.ok_or_else(|| fault("it is cut off"))?;
        let count =
            lz4_flex::block::decompress_into(packed, &mut block).map_err(io::Error::other)?;
        plain.extend_from_slice(block.get(..count).unwrap_or_default());
        if plain.len() > MAX_BYTES {
            return Err(fault("it is larger than any kernel"));
        }
        blocks = rest;
    }
    Ok(plain)
}

fn number(bytes: &[u8], at: usize) -> Option<usize> {
    let four: [u8; 4] = bytes.get(at..at.checked_add(4)?)?.try_into().ok()?;
    usize::try_from(u32::from_le_bytes(four)).ok()
}

fn fault(words: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("the kernel cannot be unpacked: {words}"))
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    /// A packed kernel with this payload.
    fn image(payload: &[u8]) -> Vec<u8> {
        let mut image = vec![0; 5 * SECTOR];
        image[0x202..0x206].copy_from_slice(b"HdrS");
        image[0x248] = 7;
        image[0x24C..0x250].copy_from_slice(&u32::try_from(payload.len()).unwrap().to_le_bytes());
        image.extend_from_slice(&[0xCC; 7]);
        image.extend_from_slice(payload);
        image.extend_from_slice(b"behind it");
        image
    }

    fn gzip(plain: &[u8]) -> Vec<u8> {
        let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        packed.write_all(plain).unwrap();
        packed.finish().unwrap()
    }

    /// A block of nothing but literals: at most 14 of them need no further byte for their number.
    fn blocks(plain: &[&[u8]]) -> Vec<u8> {
        let mut packed = LZ4.to_vec();
        for part in plain {
            let length = u8::try_from(part.len()).unwrap();
            packed.extend_from_slice(&(u32::from(length) + 1).to_le_bytes());
            packed.push(length << 4);
            packed.extend_from_slice(part);
        }
        packed
    }

    #[test]
    fn a_kernel_is_unpacked_as_it_was_packed() {
        let size = [9, 0, 0, 0];
        let plain = b"\x7fELFkernel";
        assert_eq!(unpacked(plain.to_vec()).unwrap(), plain);
        assert_eq!(unpacked(image(plain)).unwrap(), plain);
        assert_eq!(unpacked(image(&[gzip(plain), size.to_vec()].concat())).unwrap(), plain);
        let packed = blocks(&[b"\x7fELF", b"kernel"]);
        assert_eq!(unpacked(image(&[packed, size.to_vec()].concat())).unwrap(), plain);
    }

    #[test]
    fn what_is_no_kernel_or_is_cut_off_is_an_error_with_words() {
        let said = |image: Vec<u8>| unpacked(image).unwrap_err().to_string();
        assert!(said(b"nothing".to_vec()).contains("no kernel of x86"));
        assert!(said(image(b"\xFD7zXZ\0........")).contains("neither with LZ4 nor with gzip"));
        assert!(said(image(&[gzip(b"text"), vec![0; 4]].concat())).contains("no ELF file"));
        let whole = image(&[blocks(&[b"\x7fELF", b"kernel"]), vec![0; 4]].concat());
        for cut in [0x206, 0x24F, 5 * SECTOR, whole.len() - 12] {
            assert!(unpacked(whole[..cut].to_vec()).is_err(), "{cut}");
        }
        let mut lying = blocks(&[b"\x7fELF"]);
        lying[4..8].copy_from_slice(&u32::MAX.to_le_bytes());
        assert!(said(image(&[lying, vec![0; 4]].concat())).contains("cut off"));
    }
}
