//! A form is read the same however its bytes arrive, and no part is longer
//! than all of it.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| {
    let Some((&size, body)) = input.split_first() else {
        return;
    };
    const TYPE: &[u8] = b"multipart/form-data; boundary=X";
    let whole = atoll_guest::fuzzing::form(TYPE, body, body.len().max(1));
    let cut = atoll_guest::fuzzing::form(TYPE, body, usize::from(size) + 1);
    if let Ok(parts) = &whole {
        let bytes: usize = parts.iter().map(|(_, content)| content.len()).sum();
        assert!(bytes <= body.len());
        assert_eq!(Ok(parts), cut.as_ref());
    }
});
