import AccountStore
import AppleTokens
import Basics
import Testing

@testable import Effects

@Suite("Deliveries that a process holds")
struct HeldDeliveriesTests {
    private let start = ContinuousClock.now

    @Test("Requests under way and outcomes that are not stored never exceed the limit")
    func limit() {
        var held = HeldDeliveries(at: start)
        held.claimed(ClaimedDelivery.samples(1...10), areProbes: false, at: start)
        let first = held.next(below: 2, at: start)
        let second = held.next(below: 2, at: start)
        #expect(first?.delivery.change.position == 1)
        #expect(second?.delivery.change.position == 2)
        #expect(held.next(below: 2, at: start) == nil)
        if let first { held.requestEnded(first) }
        #expect(held.next(below: 2, at: start) == nil, "its outcome would be forgotten by a kill")
        held.settled(1)
        #expect(held.next(below: 2, at: start)?.delivery.change.position == 3)
    }

    @Test("Nothing is claimed ahead for an endpoint that has ended no request")
    func slow() {
        var held = HeldDeliveries(at: start)
        #expect(held.capacity(below: 8, at: start) == 8)
        held.claimed(ClaimedDelivery.samples(1...8), areProbes: false, at: start)
        while held.next(below: 8, at: start) != nil {}
        #expect(held.capacity(below: 8, at: start + .seconds(1)) == 0)
    }

    @Test("As many are claimed ahead as were sent in the last pace")
    func fast() {
        var held = HeldDeliveries(at: start)
        held.claimed(ClaimedDelivery.samples(1...40), areProbes: false, at: start)
        for _ in 1...40 {
            guard let next = held.next(below: 8, at: start) else { break }
            held.requestEnded(next)
            held.settled(1)
        }
        #expect(held.unsent == 0)
        #expect(held.capacity(below: 8, at: start + EndpointLane.pace) == 48)
        #expect(held.capacity(below: 8, at: start + EndpointLane.pace * 2) == 8, "no request ended in this pace")
    }

    @Test("A delivery is not sent when its claim may end before the answer")
    func late() {
        var held = HeldDeliveries(at: start)
        held.claimed(ClaimedDelivery.samples(1...2, isRetry: true), areProbes: false, at: start)
        let now = start + HeldDeliveries.longestWait
        #expect(held.next(below: 8, at: now) == nil)
        #expect(held.givenBack(isStopped: false, isFinished: false, at: now).map(\.delivery.claim) == ["1", "2"])
        #expect(held.count == 0)
        #expect(held.retries == 0)
    }

    @Test("While nothing is sent but probes, a probe is kept and the others are given back")
    func probe() {
        var held = HeldDeliveries(at: start)
        held.claimed(ClaimedDelivery.samples(1...1), areProbes: false, at: start)
        held.claimed(ClaimedDelivery.samples(2...2), areProbes: true, at: start)
        #expect(held.givenBack(isStopped: true, isFinished: false, at: start).map(\.delivery.claim) == ["1"])
        #expect(held.next(below: 0, at: start)?.delivery.claim == "2")
    }

    @Test("At the end everything that was not sent is given back")
    func finish() {
        var held = HeldDeliveries(at: start)
        held.claimed(ClaimedDelivery.samples(1...3), areProbes: true, at: start)
        _ = held.next(below: 1, at: start)
        #expect(held.givenBack(isStopped: true, isFinished: true, at: start).map(\.delivery.claim) == ["2", "3"])
        #expect(held.underWay == 1)
    }
}

extension ClaimedDelivery {
    static func samples(_ positions: ClosedRange<Int64>, isRetry: Bool = false) -> [ClaimedDelivery] {
        positions.map { position in
            ClaimedDelivery(
                claim: "\(position)",
                isRetry: isRetry,
                attempts: 1,
                email: nil,
                change: .sample(position: position)
            )
        }
    }
}

extension PublishedChange {
    static func sample(position: Int64) -> PublishedChange {
        PublishedChange(
            position: position,
            publishedAt: WallTime(seconds: 1_795_428_680),
            type: "siwa.consent.revoked",
            scope: "app",
            team: TeamID("A1B2C3D4E5"),
            subject: Subject("000768.6166"),
            app: AppID("com.example.app"),
            facet: "consent",
            fromState: "authorized",
            toState: "revoked",
            eventTime: WallTime(seconds: 1_795_428_672),
            recordedAt: WallTime(seconds: 1_795_428_680),
            notificationID: nil,
            sessionsEnded: 0,
            sessionID: nil,
            accountID: position,
            changeID: position
        )
    }
}
