//! As much of a DNS message as a forwarder must understand (RFC 1035 §4.1).

/// The longest message there is: its length is 16 bits over TCP.
pub(super) const MAX_MESSAGE: usize = 65_535;
/// The longest query that is passed on: a name has at most 255 bytes, and
/// what a resolver adds to it is small.
const MAX_QUERY: usize = 512;

const HEADER: usize = 12;
const MAX_NAME: usize = 255;
const MAX_LABEL: u8 = 63;

const FLAG_RESPONSE: u8 = 0x80;
const OPCODE: u8 = 0x78;
const RCODE: u8 = 0x0f;
const SERVER_FAILURE: u8 = 2;
/// Zone transfers answer with many messages; a stub resolver never asks for one.
const TRANSFERS: [u16; 2] = [251, 252];

/// A well-formed query for one name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Query {
    /// The number the sandbox gave it.
    pub(super) id: u16,
    /// The message, as it goes to the upstream.
    pub(super) message: Vec<u8>,
    /// Where its question ends.
    question_end: usize,
}

impl Query {
    /// Takes a message from a sandbox; `None` when it is no query.
    pub(super) fn parse(message: &[u8]) -> Option<Self> {
        let header = message.first_chunk::<HEADER>()?;
        let [id_high, id_low, flags, _, questions @ .., _, _] = *header;
        let standard = flags & (FLAG_RESPONSE | OPCODE) == 0;
        // One question, no answers, no authorities; additional records (EDNS) are fine.
        if message.len() > MAX_QUERY || !standard || questions != [0, 1, 0, 0, 0, 0] {
            return None;
        }
        let question_end = end_of_question(message)?;
        let kind = message
            .get(question_end - 4..question_end - 2)?
            .try_into()
            .ok()
            .map(u16::from_be_bytes)?;
        if TRANSFERS.contains(&kind) {
            return None;
        }
        Some(Self {
            id: u16::from_be_bytes([id_high, id_low]),
            message: message.to_vec(),
            question_end,
        })
    }

    /// Gives the message the number it has on its way to the upstream.
    pub(super) fn set_upstream_id(&mut self, id: u16) {
        set_id(&mut self.message, id);
    }

    /// The upstream's `answer` as the sandbox expects it; `None` when it is
    /// not the answer to this query.
    pub(super) fn accept_answer(&self, answer: &[u8]) -> Option<Vec<u8>> {
        let header = answer.first_chunk::<HEADER>()?;
        let same_id = answer.get(..2)? == self.message.get(..2)?;
        let response = header[2] & (FLAG_RESPONSE | OPCODE) == FLAG_RESPONSE;
        if !same_id || !response {
            return None;
        }
        let question = self.message.get(HEADER..self.question_end)?;
        let matches = match [header[4], header[5]] {
            // Names keep their meaning whatever the case of their letters.
            [0, 1] => answer
                .get(HEADER..self.question_end)
                .is_some_and(|asked| asked.eq_ignore_ascii_case(question)),
            // Some servers do not repeat a question they refuse.
            [0, 0] => header[3] & RCODE != 0,
            _ => false,
        };
        matches.then(|| {
            let mut answer = answer.to_vec();
            set_id(&mut answer, self.id);
            answer
        })
    }

    /// The answer "server failure", for when no upstream gives one.
    pub(super) fn failure(&self) -> Vec<u8> {
        let mut answer: Vec<u8> = self
            .message
            .iter()
            .copied()
            .take(self.question_end)
            .collect();
        set_id(&mut answer, self.id);
        if let Some([_, _, flags, code, _, _, counts @ ..]) = answer.first_chunk_mut::<HEADER>() {
            *flags |= FLAG_RESPONSE;
            *code = SERVER_FAILURE;
            *counts = [0; 6];
        }
        answer
    }
}

fn set_id(message: &mut [u8], id: u16) {
    if let Some(start) = message.first_chunk_mut::<2>() {
        *start = id.to_be_bytes();
    }
}

/// Where the first question ends; `None` when its name is not well-formed.
/// A name in a question is never compressed.
fn end_of_question(message: &[u8]) -> Option<usize> {
    let mut at = HEADER;
    loop {
        match *message.get(at)? {
            0 => break,
            label if label <= MAX_LABEL => at += 1 + usize::from(label),
            _ => return None,
        }
        if at - HEADER >= MAX_NAME {
            return None;
        }
    }
    // The root label, the type and the class.
    let end = at + 1 + 4;
    (end <= message.len()).then_some(end)
}

#[cfg(test)]
pub(in crate::network) mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A query for the addresses of `name`.
    pub(in crate::network) fn query(id: u16, name: &str) -> Vec<u8> {
        let mut message = id.to_be_bytes().to_vec();
        message.extend([1, 0, 0, 1, 0, 0, 0, 0, 0, 0]);
        for label in name.split('.') {
            message.push(u8::try_from(label.len()).unwrap());
            message.extend(label.as_bytes());
        }
        message.extend([0, 0, 1, 0, 1]);
        message
    }

    /// What an upstream makes of a query.
    pub(in crate::network) fn answer(query: &[u8]) -> Vec<u8> {
        let mut message = query.to_vec();
        message[2] |= FLAG_RESPONSE;
        message[7] = 1;
        message.extend([0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 60, 0, 4, 203, 0, 113, 7]);
        message
    }

    #[test]
    fn a_query_goes_out_under_another_number_and_its_answer_comes_back_under_its_own() {
        let mut asked = Query::parse(&query(7, "example.org")).unwrap();
        asked.set_upstream_id(0xbeef);
        assert_eq!(asked.message, query(0xbeef, "example.org"));
        assert_eq!(
            asked.accept_answer(&answer(&asked.message)),
            Some(answer(&query(7, "example.org")))
        );
    }

    #[test]
    fn an_answer_to_another_query_is_not_accepted() {
        let mut asked = Query::parse(&query(7, "example.org")).unwrap();
        asked.set_upstream_id(0xbeef);
        assert_eq!(
            asked.accept_answer(&answer(&query(0xbee0, "example.org"))),
            None,
            "number"
        );
        assert_eq!(
            asked.accept_answer(&answer(&query(0xbeef, "examp1e.org"))),
            None,
            "name"
        );
        assert_eq!(
            asked.accept_answer(&query(0xbeef, "example.org")),
            None,
            "no answer at all"
        );
        let mut unasked = answer(&query(0xbeef, "example.org"));
        unasked[5] = 0;
        assert_eq!(
            asked.accept_answer(&unasked),
            None,
            "no question, yet no error"
        );
        unasked[3] = 5;
        assert!(
            asked.accept_answer(&unasked).is_some(),
            "a refusal need not repeat the question"
        );
    }

    #[test]
    fn letters_of_an_answered_name_may_change_case() {
        let asked = Query::parse(&query(7, "example.org")).unwrap();
        assert!(
            asked
                .accept_answer(&answer(&query(7, "EXAMPLE.org")))
                .is_some()
        );
    }

    #[test]
    fn what_is_no_query_is_refused() {
        let good = query(1, "a.b");
        assert!(Query::parse(&good).is_some());
        let with = |at: usize, byte: u8| {
            let mut bad = good.clone();
            bad[at] = byte;
            Query::parse(&bad)
        };
        assert_eq!(with(2, 0x80), None, "an answer");
        assert_eq!(with(2, 0x28), None, "an update");
        assert_eq!(with(5, 0), None, "no question");
        assert_eq!(with(5, 2), None, "two questions");
        assert_eq!(with(7, 1), None, "an answer in a query");
        assert_eq!(with(12, 0xc0), None, "a compressed name");
        assert_eq!(with(12, 63), None, "a label beyond the end");
        assert_eq!(with(good.len() - 3, 252), None, "a zone transfer");
        assert_eq!(Query::parse(&good[..good.len() - 1]), None, "cut off");
        assert_eq!(Query::parse(&[]), None);
        let long = vec!["a".repeat(63); 5].join(".");
        assert_eq!(
            Query::parse(&query(1, &long)),
            None,
            "a name beyond 255 bytes"
        );
    }

    #[test]
    fn a_failure_repeats_the_question_and_nothing_else() {
        let mut message = query(9, "example.org");
        message[11] = 1;
        message.extend([0, 0, 41, 4, 208, 0, 0, 0, 0, 0, 0]);
        let mut asked = Query::parse(&message).unwrap();
        asked.set_upstream_id(1);
        let mut expected = query(9, "example.org");
        expected[2] |= 0x80;
        expected[3] = 2;
        assert_eq!(asked.failure(), expected);
    }

    proptest! {
        #[test]
        fn garbage_is_refused_or_handled_whole(message: Vec<u8>, answer: Vec<u8>) {
            if let Some(mut asked) = Query::parse(&message) {
                asked.set_upstream_id(1);
                prop_assert_eq!(asked.message.len(), message.len());
                prop_assert!(asked.failure().len() <= message.len());
                let _ = asked.accept_answer(&answer);
            }
        }

        #[test]
        fn damaged_queries_and_answers_never_panic(at in 0_usize..40, byte: u8, cut in 0_usize..60) {
            let asked = Query::parse(&query(7, "example.org")).unwrap();
            let mut damaged = answer(&query(7, "example.org"));
            if let Some(place) = damaged.get_mut(at) { *place = byte; }
            damaged.truncate(cut);
            if let Some(accepted) = asked.accept_answer(&damaged) {
                prop_assert_eq!(accepted.len(), damaged.len());
            }
            let _ = Query::parse(&damaged);
        }
    }
}
