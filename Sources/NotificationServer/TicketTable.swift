/// The requests that wait for the intake, found again by their ticket in constant time.
///
/// A ticket is a place in the table and the number of its use: an answer that comes after its request has gone finds
/// nothing, even when another request has the place.
struct TicketTable<Holder> {
    private struct Place {
        var use: UInt32 = 0
        var holder: Holder?
        var sequence: UInt64 = 0
    }

    private var places: [Place] = []
    private var free: [UInt32] = []

    /// How many tickets are out.
    var count: Int { places.count - free.count }

    /// Gives a ticket to request number `sequence` of `holder`.
    mutating func issue(to holder: Holder, sequence: UInt64) -> UInt64 {
        let index: UInt32
        if let last = free.popLast() {
            index = last
        } else {
            index = UInt32(places.count)
            places.append(Place())
        }
        places[Int(index)].holder = holder
        places[Int(index)].sequence = sequence
        return UInt64(places[Int(index)].use) << 32 | UInt64(index)
    }

    /// Takes a ticket back. `nil`: it was taken back before, or never given.
    @discardableResult
    mutating func redeem(_ ticket: UInt64) -> (holder: Holder, sequence: UInt64)? {
        let index = Int(ticket & 0xFFFF_FFFF)
        guard
            index < places.count, places[index].use == UInt32(truncatingIfNeeded: ticket >> 32),
            let holder = places[index].holder
        else { return nil }
        places[index].use &+= 1
        places[index].holder = nil
        free.append(UInt32(index))
        return (holder, places[index].sequence)
    }
}
