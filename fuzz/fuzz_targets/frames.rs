//! Frames come out the same however their bytes are cut, and never more of
//! them than went in.
#![no_main]

use atoll_protocol::connect::{Frame, FrameDecoder, FrameError, encode_frame};
use libfuzzer_sys::fuzz_target;

const LIMIT: usize = 4096;

/// What comes out of a decoder that gets these pieces.
fn decode<'a>(pieces: impl Iterator<Item = &'a [u8]>) -> (Vec<Frame>, Option<FrameError>) {
    let mut decoder = FrameDecoder::new(LIMIT);
    let mut frames = Vec::new();
    for piece in pieces {
        decoder.push(piece);
        loop {
            match decoder.next_frame() {
                Ok(Some(frame)) => frames.push(frame),
                Ok(None) => break,
                Err(error) => return (frames, Some(error)),
            }
        }
    }
    (frames, None)
}

fuzz_target!(|input: &[u8]| {
    let Some((&size, bytes)) = input.split_first() else {
        return;
    };
    let whole = decode(std::iter::once(bytes));
    let cut = decode(bytes.chunks(usize::from(size) + 1));
    assert_eq!(whole, cut);
    let mut written = 0;
    for frame in &whole.0 {
        assert!(frame.payload.len() <= LIMIT);
        let again = encode_frame(frame.flags, &frame.payload).expect("it was a frame");
        assert!(bytes[written..].starts_with(&again));
        written += again.len();
    }
});
