use super::*;

/// A host for `sandboxes` of [`one`], and nothing else.
fn host(sandboxes: u64) -> Booking {
    Booking::new(&HostCapacity {
        cpu_millis: 500 * sandboxes,
        memory_mib: 64 * sandboxes,
        cpu_overcommit: 4.0,
        memory_overcommit: 2.0,
        sandboxes: 1000,
        queue_length: 3,
        queue_wait: Duration::from_secs(20),
    })
}

fn sized(cpu_millis: u64, memory_mib: u64) -> Limits {
    Limits {
        cpu_millis,
        memory_mib,
        ..Limits::default()
    }
}

fn one() -> Limits {
    sized(2000, 128)
}

fn booked(booking: &Booking) -> Amount {
    booking.lock().booked
}

#[test]
fn a_small_host_has_room_for_a_hundred_sandboxes_of_the_default_size() {
    let booking = Booking::new(&HostCapacity::of(2000, 24 * 1024));
    let all: Vec<_> = (0..100)
        .map_while(|_| booking.take_now(&Limits::default()))
        .collect();
    assert_eq!(all.len(), 100);
    drop(all);
    assert_eq!(booked(&booking), Amount::default());
}

#[test]
fn what_is_booked_is_what_the_limits_say_until_it_is_given_back() {
    let booking = host(2);
    let first = booking.take_now(&one()).unwrap();
    let second = booking.take_now(&one()).unwrap();
    assert!(booking.take_now(&sized(10, 16)).is_none());
    // What is there already counts, and is not turned away.
    let third = booking.take_anyway(&one());
    let all = Amount {
        cpu_millis: 6000,
        memory_mib: 384,
        sandboxes: 3,
    };
    assert_eq!(booked(&booking), all);
    drop((first, second));
    assert!(booking.take_now(&one()).is_some());
    drop(third);
    assert_eq!(booked(&booking), Amount::default());
}

#[test]
fn one_that_holds_still_keeps_its_memory_and_lends_its_processors() {
    let booking = host(2);
    let mut paused = booking.take_now(&one()).unwrap();
    paused.hold(Hold::Frozen);
    paused.hold(Hold::Frozen);
    let frozen = Amount {
        cpu_millis: 0,
        memory_mib: 128,
        sandboxes: 1,
    };
    assert_eq!(booked(&booking), frozen);
    let busy = booking.take_now(&sized(4000, 128)).unwrap();
    assert!(booking.take_now(&sized(10, 16)).is_none(), "memory is kept");
    // Nobody who wakes up waits.
    paused.hold(Hold::Running);
    assert_eq!(booked(&booking).cpu_millis, 6000);
    paused.hold(Hold::Frozen);
    drop(paused);
    drop(busy);
    assert_eq!(booked(&booking), Amount::default());
}

#[test]
fn one_without_memory_gives_it_back_and_wakes_up_only_where_there_is_room() {
    let booking = host(1);
    let mut suspended = booking.take_now(&one()).unwrap();
    suspended.hold(Hold::Suspended);
    let place = Amount {
        sandboxes: 1,
        ..Amount::default()
    };
    assert_eq!(booked(&booking), place);
    let busy = booking.take_now(&one()).unwrap();
    let full = booked(&booking);
    assert_eq!(
        suspended.take_back(),
        Err(Full::Now(Resource::Memory)),
        "it is somebody else's"
    );
    assert_eq!(booked(&booking), full);
    drop(busy);
    assert_eq!(suspended.take_back(), Ok(()));
    assert_eq!(suspended.take_back(), Ok(()), "once is enough");
    assert!(booking.take_now(&sized(10, 16)).is_none());
    suspended.hold(Hold::Suspended);
    drop(suspended);
    assert_eq!(booked(&booking), Amount::default());
}

#[tokio::test(start_paused = true)]
async fn who_waits_is_served_in_the_order_of_arrival() {
    let booking = host(2);
    let first = booking.take_now(&one()).unwrap();
    let second = booking.take_now(&one()).unwrap();
    let order = Arc::new(Mutex::new(Vec::new()));
    let mut waiters = Vec::new();
    // The large one comes first, and the small ones do not pass it.
    for (name, limits) in [("large", sized(4000, 256)), ("a", one()), ("b", one())] {
        let (waiter, order) = (booking.clone(), Arc::clone(&order));
        waiters.push(tokio::spawn(async move {
            let booked = waiter.take(&limits, || {}).await.unwrap();
            order.lock().unwrap().push(name);
            tokio::time::sleep(Duration::from_secs(1)).await;
            drop(booked);
        }));
        while booking.waiting() < waiters.len() {
            tokio::task::yield_now().await;
        }
    }
    assert_eq!(
        booking.take(&one(), || {}).await.unwrap_err(),
        Full::Queue(Resource::Memory, 3)
    );
    assert!(booking.take_now(&sized(10, 16)).is_none(), "others wait");
    drop(first);
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert!(order.lock().unwrap().is_empty());
    drop(second);
    for waiter in waiters {
        waiter.await.unwrap();
    }
    assert_eq!(*order.lock().unwrap(), ["large", "a", "b"]);
    assert_eq!(booked(&booking), Amount::default());
}

#[tokio::test(start_paused = true)]
async fn nobody_waits_for_ever_and_who_gave_up_is_in_nobodys_way() {
    let booking = host(1);
    let held = booking.take_now(&one()).unwrap();
    let begun = tokio::time::Instant::now();
    let mut asked = 0;
    let refused = booking.take(&one(), || asked += 1).await;
    let bound = Duration::from_secs(20);
    assert_eq!(refused.unwrap_err(), Full::Waited(Resource::Memory, bound));
    assert_eq!((begun.elapsed(), asked), (bound, 1));
    assert_eq!(booking.waiting(), 0);
    // One that is dropped while it waits leaves the line too.
    let limits = one();
    let gone = booking.take(&limits, || {});
    assert!(
        tokio::time::timeout(Duration::from_secs(1), gone)
            .await
            .is_err()
    );
    assert_eq!(booking.waiting(), 0);
    drop(held);
    assert!(booking.take(&one(), || asked += 1).await.is_ok());
    assert_eq!(asked, 1, "there was room");
    assert_eq!(booked(&booking), Amount::default());
}

#[tokio::test]
async fn what_an_empty_host_could_not_hold_does_not_wait() {
    for (limits, resource) in [
        (sized(2000, 129), Resource::Memory),
        (sized(2001, 128), Resource::Processors),
    ] {
        let refused = host(1).take(&limits, || {}).await;
        assert_eq!(refused.unwrap_err(), Full::Never(resource));
    }
}

#[test]
fn places_are_counted_too() {
    let booking = Booking::new(&HostCapacity {
        sandboxes: 2,
        ..HostCapacity::of(2000, 24 * 1024)
    });
    let two = [booking.take_now(&one()), booking.take_now(&one())];
    assert!(two.iter().all(Option::is_some));
    assert!(booking.take_now(&one()).is_none());
    let state = booking.lock();
    let missing = booking.missing(&state, Amount::of(&one()));
    drop(state);
    assert_eq!(missing, Resource::Sandboxes);
}
