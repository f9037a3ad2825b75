import Testing

@testable import AppleTokens

@Suite struct UnknownKeyIDsTests {
    private static let start = ContinuousClock.now
    private static let forged = (0..<20_000).map { "forged-\($0)" }

    @Test("Of a flood of made-up names no more than the limit is asked for with the next fetch.")
    func asked() {
        var unknown = UnknownKeyIDs(floor: .seconds(60))
        for kid in Self.forged { unknown.keyRequested(kid) }
        #expect(unknown.fetchBegan().count == UnknownKeyIDs.limit)
        #expect(unknown.fetchBegan().isEmpty)
    }

    @Test("Unknown names cause no more fetches in a row than the bucket holds, and one more per floor after that.")
    func bucket() {
        var unknown = UnknownKeyIDs(floor: .seconds(60), burst: 3)
        func at(_ seconds: Double) -> ContinuousClock.Instant { Self.start + .seconds(seconds) }
        func take(_ seconds: Double) -> Bool {
            guard unknown.fetchAllowedAt(at(seconds)) == nil else { return false }
            unknown.fetchCaused(at: at(seconds))
            return true
        }
        #expect([take(0), take(1), take(2), take(3)] == [true, true, true, false])
        #expect(unknown.fetchAllowedAt(at(3)) == at(60))
        #expect([take(59.9), take(60), take(61), take(120), take(121)] == [false, true, false, true, false])
        // Full again, and no fuller.
        #expect([take(1_000), take(1_000), take(1_000), take(1_000)] == [true, true, true, false])
    }

    @Test("What a failed fetch leaves open is no more than the limit either.")
    func unsettled() {
        var unknown = UnknownKeyIDs(floor: .seconds(60))
        unknown.notSettled(Set(Self.forged))
        #expect(unknown.fetchBegan().count == UnknownKeyIDs.limit)
    }

    @Test("Of a flood of made-up names no more than the limit is known to be absent, the first ones.")
    func absent() {
        var unknown = UnknownKeyIDs(floor: .seconds(60))
        unknown.settled(absent: Self.forged, fetchBeganAt: Self.start)
        let absent = Self.forged.filter { unknown.isAbsent($0, at: Self.start) }
        #expect(absent == Array(Self.forged.prefix(UnknownKeyIDs.limit)))
        #expect(unknown.absent(at: Self.start) == Set(absent))
        #expect(unknown.absent(at: Self.start + .seconds(60)).isEmpty)
    }
}
