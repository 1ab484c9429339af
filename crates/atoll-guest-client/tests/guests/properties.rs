//! What holds for any bytes.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

use atoll_guest_client::{ExitStatus, GuestError, bounded_frames};
use atoll_protocol::connect::{FLAG_END_OF_STREAM, Frame, FrameDecoder, encode_frame};
use bytes::Bytes;
use hyper::body::{Body, Frame as BodyFrame};
use proptest::collection::vec;
use proptest::prelude::{ProptestConfig, any, prop};
use proptest::{prop_assert, prop_assert_eq, proptest};

const LIMIT: usize = 64;

/// Cuts bytes into pieces of the given lengths, over and over.
fn pieces(bytes: &[u8], cuts: &[usize]) -> VecDeque<Bytes> {
    let mut rest = Bytes::copy_from_slice(bytes);
    let mut pieces = VecDeque::new();
    for cut in cuts.iter().cycle() {
        if rest.is_empty() {
            break;
        }
        pieces.push_back(rest.split_to((*cut).min(rest.len())));
    }
    pieces
}

/// What a decoder makes of the pieces, and whether it stopped at an error.
fn decode(pieces: VecDeque<Bytes>) -> (Vec<Frame>, bool) {
    let mut decoder = FrameDecoder::new(LIMIT);
    let mut frames = Vec::new();
    for piece in pieces {
        decoder.push(&piece);
        loop {
            match decoder.next_frame() {
                Ok(Some(frame)) => frames.push(frame),
                Ok(None) => break,
                Err(_) => return (frames, true),
            }
        }
    }
    (frames, false)
}

struct Pieces(VecDeque<Bytes>);

impl Body for Pieces {
    type Data = Bytes;
    type Error = GuestError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<BodyFrame<Bytes>, GuestError>>> {
        Poll::Ready(self.0.pop_front().map(|piece| Ok(BodyFrame::data(piece))))
    }
}

/// What passes of the pieces, and whether that ended with an error.
fn pass(pieces: VecDeque<Bytes>) -> (Vec<u8>, bool, bool) {
    let mut body = bounded_frames(Pieces(pieces), LIMIT);
    let mut context = Context::from_waker(std::task::Waker::noop());
    let mut passed = Vec::new();
    loop {
        match Pin::new(&mut body).poll_frame(&mut context) {
            Poll::Ready(Some(Ok(frame))) => passed.extend_from_slice(frame.data_ref().unwrap()),
            Poll::Ready(Some(Err(_))) => return (passed, true, body.is_between_frames()),
            Poll::Ready(None) => return (passed, false, body.is_between_frames()),
            Poll::Pending => unreachable!("nothing to wait for"),
        }
    }
}

fn encode(payloads: &[Vec<u8>], last: Option<&[u8]>) -> Result<Vec<u8>, Infallible> {
    let mut wire = Vec::new();
    for payload in payloads {
        wire.extend_from_slice(&encode_frame(0, payload).unwrap());
    }
    if let Some(last) = last {
        wire.extend_from_slice(&encode_frame(FLAG_END_OF_STREAM, last).unwrap());
    }
    Ok(wire)
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn frames_come_back_however_they_are_cut(
        payloads in vec(vec(any::<u8>(), 0..=LIMIT), 0..8),
        last in prop::option::of(vec(any::<u8>(), 0..=LIMIT)),
        cuts in vec(1usize..40, 1..10),
    ) {
        let wire = encode(&payloads, last.as_deref()).unwrap();
        let (frames, failed) = decode(pieces(&wire, &cuts));
        let frame = |flags, payload: &Vec<u8>| Frame { flags, payload: payload.clone().into() };
        let expected: Vec<_> = payloads.iter().map(|payload| frame(0, payload))
            .chain(last.iter().map(|payload| frame(FLAG_END_OF_STREAM, payload)))
            .collect();
        prop_assert_eq!(frames, expected);
        prop_assert!(!failed);

        let (passed, failed, between) = pass(pieces(&wire, &cuts));
        prop_assert_eq!(passed, wire);
        // A stream needs its last frame.
        prop_assert_eq!(failed, last.is_none());
        prop_assert!(between);
    }

    #[test]
    fn any_bytes_are_frames_or_an_error(
        bytes in vec(prop::sample::select(vec![0u8, 0, 0, 0, 1, 2, 3, 5, 64, 65, 255]), 0..300),
        cuts in vec(1usize..40, 1..10),
    ) {
        // However they are cut, the same comes out.
        let whole = decode(pieces(&bytes, &[usize::MAX]));
        prop_assert_eq!(&decode(pieces(&bytes, &cuts)), &whole);
        let (passed, failed, between) = pass(pieces(&bytes, &[usize::MAX]));
        prop_assert_eq!(pass(pieces(&bytes, &cuts)), (passed.clone(), failed, between));
        prop_assert!(bytes.starts_with(&passed));
        // What passes is what a decoder takes.
        let (frames, refused) = decode(pieces(&passed, &cuts));
        prop_assert!(!refused);
        if !failed {
            // Bytes after the last frame are nobody's.
            let ended = frames.last().is_some_and(|frame| frame.flags & FLAG_END_OF_STREAM != 0);
            prop_assert!(ended || passed == bytes);
        }
    }

    #[test]
    fn wild_bytes_never_panic(bytes in vec(any::<u8>(), 0..300), cuts in vec(1usize..40, 1..10)) {
        decode(pieces(&bytes, &cuts));
        pass(pieces(&bytes, &cuts));
    }

    #[test]
    fn an_end_is_read_back_or_refused(code in any::<i32>(), exited in any::<bool>(), text in ".*") {
        match ExitStatus::parse(code, exited, &text) {
            Some(ExitStatus::Exited(status)) => {
                prop_assert!(exited);
                prop_assert_eq!(status, code);
            }
            Some(ExitStatus::Signaled(signal)) => {
                prop_assert!(!exited && (1..=64).contains(&signal));
            }
            None => prop_assert!(!exited),
        }
    }

    #[test]
    fn signals_are_read_back(number in any::<i32>(), dumped in any::<bool>()) {
        let status = ExitStatus::Signaled(number);
        let suffix = if dumped { " (core dumped)" } else { "" };
        let read = ExitStatus::parse(-1, false, &format!("{}{suffix}", status.text()));
        prop_assert_eq!(read, (1..=64).contains(&number).then_some(status));
    }
}
