//! What the rules know of one sandbox: its elements in their sets and maps.
//!
//! Elements are put in before the sandbox has an interface and taken out after
//! it lost it, by messages to the kernel without `nft`. Every change is one
//! transaction. Their counters live as long as they do, so also when a monitor
//! was killed the last word about a sandbox can be read.

use std::fs;
use std::io;
use std::net::Ipv4Addr;

use rustix::io::Errno;

use super::error::{NetworkError, kernel};
use super::firewall::{
    ALLOWED, DNS, Family, RECEIVED, REFUSED, SENT, TABLE, denied_set, family_of,
};
use super::netlink::is;
use super::nfnetlink::{Attributes, Message, Netfilter, attribute, attributes, with_netfilter};
use super::nft::SUBSYSTEM;
use super::policy::NetworkPolicy;
use super::slot::interface_name;
use super::usage::{Denial, NetworkUsage, Traffic};
use crate::host::{HostObject, creates};

// Numbers of the kernel's interface (linux/netfilter/nf_tables.h).
const NEW_ELEMENT: u16 = SUBSYSTEM | 12;
const GET_ELEMENT: u16 = SUBSYSTEM | 13;
const DELETE_ELEMENT: u16 = SUBSYSTEM | 14;
const FLAG_EXCLUSIVE: u16 = 0x200;
const FLAG_CREATE: u16 = 0x400;
const LIST_TABLE: u16 = 1;
const LIST_SET: u16 = 2;
const LIST_ELEMENTS: u16 = 3;
const LIST_ELEMENT: u16 = 1;
const KEY: u16 = 1;
const DATA: u16 = 2;
const EXPRESSION: u16 = 7;
const KEY_END: u16 = 10;
const EXPRESSIONS: u16 = 11;
const VALUE: u16 = 1;
const EXPRESSION_NAME: u16 = 1;
const EXPRESSION_DATA: u16 = 2;
const COUNTER_BYTES: u16 = 1;
const COUNTER_PACKETS: u16 = 2;

/// Length of an interface name in a key.
const NAME_BYTES: usize = 16;
/// Somebody may load the rules anew between two of our steps.
const ATTEMPTS: usize = 3;

/// One place of a sandbox in one set.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Element {
    family: Family,
    set: String,
    key: Vec<u8>,
    /// Last key, for an element that is a range.
    end: Option<Vec<u8>>,
    /// What a map leads to.
    data: Option<Vec<u8>>,
}

impl Element {
    /// What the kernel is told of it.
    fn attributes(&self) -> Attributes {
        let value = |bytes: &[u8]| Attributes::new().bytes(VALUE, bytes);
        let mut element = Attributes::new().nested(KEY, &value(&self.key));
        if let Some(end) = &self.end {
            element = element.nested(KEY_END, &value(end));
        }
        if let Some(data) = &self.data {
            element = element.nested(DATA, &value(data));
        }
        element
    }
}

/// What to do with elements.
#[derive(Debug, Clone, Copy)]
enum Verb {
    Add,
    Get,
    Remove,
}

/// Messages that do `verb` to all of `elements`: one for each run of elements
/// of one set, because the kernel has no room for hundreds of answers.
fn messages(verb: Verb, elements: &[Element]) -> Vec<Message> {
    let (kind, flags) = match verb {
        Verb::Add => (NEW_ELEMENT, FLAG_CREATE | FLAG_EXCLUSIVE),
        Verb::Get => (GET_ELEMENT, 0),
        Verb::Remove => (DELETE_ELEMENT, 0),
    };
    elements
        .chunk_by(|one, next| one.family == next.family && one.set == next.set)
        .filter_map(|run| Some((run, run.first()?)))
        .map(|(run, first)| Message {
            kind,
            flags,
            family: first.family.number(),
            attributes: Attributes::new()
                .text(LIST_TABLE, TABLE)
                .text(LIST_SET, &first.set)
                .nested(
                    LIST_ELEMENTS,
                    &run.iter().fold(Attributes::new(), |list, element| {
                        list.nested(LIST_ELEMENT, &element.attributes())
                    }),
                ),
        })
        .collect()
}

/// The sandbox of a slot, as the rules know it.
#[derive(Debug)]
pub(super) struct Member {
    name: [u8; NAME_BYTES],
    interface: String,
}

impl Member {
    pub(super) fn of(slot: u16) -> Self {
        let interface = interface_name(slot);
        let mut name = [0; NAME_BYTES];
        for (place, byte) in name.iter_mut().zip(interface.bytes()) {
            *place = byte;
        }
        Self { name, interface }
    }

    fn named(&self, family: Family, set: impl Into<String>) -> Element {
        Element {
            family,
            set: set.into(),
            key: self.name.to_vec(),
            end: None,
            data: None,
        }
    }

    /// Where it is counted, whatever its policy.
    fn places(&self) -> Vec<Element> {
        let counted = [SENT, RECEIVED, DNS].map(|set| self.named(Family::Inet, set));
        let denied = Denial::ALL
            .iter()
            .filter_map(|denial| Some(self.named(family_of(*denial)?, denied_set(*denial))));
        counted.into_iter().chain(denied).collect()
    }

    /// The entries of its lists.
    fn lists(&self, policy: &NetworkPolicy) -> Vec<Element> {
        let key = |address: Ipv4Addr| [self.name.as_slice(), &address.octets()].concat();
        let entry = |set, (first, last)| Element {
            key: key(first),
            end: Some(key(last)),
            ..self.named(Family::Inet, set)
        };
        let allowed = policy
            .allowed()
            .into_iter()
            .map(|range| entry(ALLOWED, range));
        let denied = policy
            .denied()
            .into_iter()
            .map(|range| entry(REFUSED, range));
        allowed.chain(denied).collect()
    }

    /// Whether it may use the place, under `policy`.
    fn wants(place: &Element, policy: &NetworkPolicy) -> bool {
        place.set != DNS || policy.resolves_names()
    }

    /// Makes it known: from now on its packets are translated, judged and counted.
    pub(super) fn join(
        &self,
        address: Ipv4Addr,
        policy: &NetworkPolicy,
    ) -> Result<(), NetworkError> {
        let places = self.places().into_iter().map(|mut place| {
            if place.set == SENT {
                place.data = Some(address.octets().to_vec());
            }
            place
        });
        let elements: Vec<Element> = places
            .filter(|place| Self::wants(place, policy))
            .chain(self.lists(policy))
            .collect();
        let messages = messages(Verb::Add, &elements);
        let join = || {
            creates(HostObject::NetworkMember, || {
                with_netfilter(|kernel| kernel.transact(&messages))
            })
        };
        let joined = match join() {
            // Left by a dead owner of this slot.
            Err(error) if is(&error, Errno::EXIST) => {
                self.leave()?;
                join()
            }
            other => other,
        };
        joined.map_err(|error| {
            if is(&error, Errno::NOENT) {
                NetworkError::FirewallAbsent
            } else {
                kernel(format!("make `{}` known to the rules", self.interface))(error)
            }
        })
    }

    /// Puts `policy` in place of what it had, in one step. Counters go on.
    pub(super) fn change(&self, policy: &NetworkPolicy) -> Result<(), NetworkError> {
        let change = |kernel: &mut Netfilter| {
            let mut changes = messages(Verb::Remove, &self.listed(kernel)?);
            changes.extend(messages(Verb::Add, &self.lists(policy)));
            let dns = self.named(Family::Inet, DNS);
            match (traffic(kernel, &dns)?, policy.resolves_names()) {
                (None, true) => changes.extend(messages(Verb::Add, &[dns])),
                (Some(_), false) => changes.extend(messages(Verb::Remove, &[dns])),
                _ => {}
            }
            kernel.transact(&changes)
        };
        with_netfilter(change).map_err(kernel(format!("change the lists of `{}`", self.interface)))
    }

    /// Takes out whatever is there of it; where there is nothing, that is done already.
    pub(super) fn leave(&self) -> Result<(), NetworkError> {
        let leave = |kernel: &mut Netfilter| {
            let mut elements = self.listed(kernel)?;
            for place in self.places() {
                if traffic(kernel, &place)?.is_some() {
                    elements.push(place);
                }
            }
            kernel.transact(&messages(Verb::Remove, &elements))
        };
        let mut result = with_netfilter(leave);
        for _ in 1..ATTEMPTS {
            match &result {
                Err(error) if is(error, Errno::NOENT) => result = with_netfilter(leave),
                _ => break,
            }
        }
        result.map_err(kernel(format!(
            "take `{}` out of the rules",
            self.interface
        )))
    }

    /// The entries of its lists that are in the kernel.
    fn listed(&self, kernel: &mut Netfilter) -> io::Result<Vec<Element>> {
        let mut found = Vec::new();
        for set in [ALLOWED, REFUSED] {
            let request = Message {
                kind: GET_ELEMENT,
                flags: 0,
                family: Family::Inet.number(),
                attributes: Attributes::new()
                    .text(LIST_TABLE, TABLE)
                    .text(LIST_SET, set),
            };
            let parts = match kernel.list(&request) {
                Err(error) if is(&error, Errno::NOENT) => continue,
                other => other?,
            };
            for element in parts.iter().flat_map(|part| elements_in(part)) {
                let value = |kind| {
                    let nested = attribute(element, kind)?;
                    attribute(nested, VALUE).map(<[u8]>::to_vec)
                };
                if let Some(key) = value(KEY).filter(|key| key.starts_with(&self.name)) {
                    found.push(Element {
                        key,
                        end: value(KEY_END),
                        ..self.named(Family::Inet, set)
                    });
                }
            }
        }
        Ok(found)
    }

    /// What was counted of it; `None` when the rules do not know it.
    pub(super) fn usage(&self) -> Result<Option<NetworkUsage>, NetworkError> {
        let read = |kernel: &mut Netfilter| {
            let mut count = |family, set: &str| traffic(kernel, &self.named(family, set));
            let Some(sent) = count(Family::Inet, SENT)? else {
                return Ok(None);
            };
            let mut usage = NetworkUsage {
                sent,
                received: count(Family::Inet, RECEIVED)?.unwrap_or_default(),
                dns: count(Family::Inet, DNS)?.unwrap_or_default(),
                ..NetworkUsage::default()
            };
            for denial in Denial::ALL {
                let denied = match family_of(*denial) {
                    Some(family) => count(family, &denied_set(*denial))?.unwrap_or_default(),
                    None => self.ipv6(),
                };
                if denied.packets > 0 {
                    usage.denied.insert(*denial, denied);
                }
            }
            Ok(Some(usage))
        };
        with_netfilter(read).map_err(kernel(format!("read the counters of `{}`", self.interface)))
    }

    /// IPv6 that the kernel dropped because it is switched off on the interface; it counts no bytes.
    fn ipv6(&self) -> Traffic {
        let path = format!("/proc/thread-self/net/dev_snmp6/{}", self.interface);
        let text = fs::read_to_string(path).unwrap_or_default();
        let dropped = text
            .lines()
            .filter_map(|line| line.split_once(char::is_whitespace))
            .find(|(name, _)| *name == "Ip6InDiscards")
            .and_then(|(_, value)| value.trim().parse().ok());
        Traffic {
            packets: dropped.unwrap_or_default(),
            bytes: 0,
        }
    }
}

/// What was counted at a place; `None` when the element is not there.
fn traffic(kernel: &mut Netfilter, place: &Element) -> io::Result<Option<Traffic>> {
    let Some(question) = messages(Verb::Get, std::slice::from_ref(place)).pop() else {
        return Ok(None);
    };
    match kernel.ask(&question) {
        Ok(parts) => Ok(parts
            .iter()
            .flat_map(|part| elements_in(part))
            .map(counter_in)
            .next()),
        Err(error) if is(&error, Errno::NOENT) => Ok(None),
        Err(error) => Err(error),
    }
}

/// The elements in one part of the kernel's answer.
fn elements_in(part: &[u8]) -> impl Iterator<Item = &[u8]> {
    attribute(part, LIST_ELEMENTS)
        .into_iter()
        .flat_map(attributes)
        .map(|(_, element)| element)
}

/// The counter among what an element carries.
fn counter_in(element: &[u8]) -> Traffic {
    let single = attribute(element, EXPRESSION);
    let several = attribute(element, EXPRESSIONS)
        .into_iter()
        .flat_map(attributes);
    let number = |data, kind| {
        let bytes = attribute(data, kind).and_then(|value| value.first_chunk::<8>());
        u64::from_be_bytes(bytes.copied().unwrap_or_default())
    };
    single
        .into_iter()
        .chain(several.map(|(_, expression)| expression))
        .find(|expression| attribute(expression, EXPRESSION_NAME) == Some(b"counter\0"))
        .and_then(|expression| attribute(expression, EXPRESSION_DATA))
        .map(|data| Traffic {
            packets: number(data, COUNTER_PACKETS),
            bytes: number(data, COUNTER_BYTES),
        })
        .unwrap_or_default()
}
