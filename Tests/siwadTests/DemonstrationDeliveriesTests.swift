import Testing

@testable import siwad

@Suite("The messages that the demonstration of siwad dev expects")
struct DemonstrationDeliveriesTests {
    private static let disabled = DemonstrationDeliveries.Change(subject: "ben", type: "siwa.email.forwarding_disabled")
    private static let enabled = DemonstrationDeliveries.Change(subject: "ben", type: "siwa.email.forwarding_enabled")
    private static let revoked = DemonstrationDeliveries.Change(subject: "eve", type: "siwa.consent.revoked")

    private static func message(
        _ change: DemonstrationDeliveries.Change,
        _ id: String?,
        isAccepted: Bool = true
    ) -> DemonstrationReceiver.Message {
        .init(id: id, change: change, isAccepted: isAccepted, arrivedAt: .now)
    }

    /// - Parameter further: messages in addition to one of each change.
    private static func faults(_ further: DemonstrationReceiver.Message...) -> [String] {
        DemonstrationDeliveries.faults(
            in: [message(disabled, "msg_1"), message(enabled, "msg_2"), message(revoked, "msg_3")] + further,
            expecting: [disabled, enabled, revoked]
        )
    }

    @Test("One message for each change is right, also with a refused attempt and messages about other people.")
    func complete() {
        let earlier = DemonstrationDeliveries.Change(subject: "ada", type: "siwa.account.deleted")
        #expect(Self.faults() == [])
        #expect(Self.faults(Self.message(Self.enabled, "msg_2", isAccepted: false)) == [])
        #expect(Self.faults(Self.message(earlier, "msg_4"), Self.message(earlier, "msg_4")) == [])
    }

    @Test("A missing message is a fault, also if it arrived but was refused.")
    func missing() {
        let messages = [Self.message(Self.disabled, "msg_1"), Self.message(Self.enabled, "msg_2", isAccepted: false)]
        let changes = [Self.disabled, Self.enabled, Self.revoked]
        #expect(
            DemonstrationDeliveries.faults(in: messages, expecting: changes) == [
                "the application did not get siwa.email.forwarding_enabled of ben",
                "the application did not get siwa.consent.revoked of eve",
            ]
        )
    }

    @Test("A second copy of a message is a fault.", arguments: ["msg_3", "msg_5"])
    func doubled(id: String) {
        let faults = Self.faults(Self.message(Self.revoked, id))
        #expect(faults == ["the application got siwa.consent.revoked of eve too often: 2, not 1"])
    }

    @Test("A change that no step makes is a fault.")
    func unexpected() {
        let forged = DemonstrationDeliveries.Change(subject: "eve", type: "siwa.account.deleted")
        let faults = Self.faults(Self.message(forged, "msg_4"))
        #expect(faults == ["the application got siwa.account.deleted of eve too often: 1, not 0"])
    }

    @Test("A message that is not verified is a fault, also if it was refused.", arguments: [true, false])
    func unverified(isAccepted: Bool) {
        let messages = [
            Self.message(Self.revoked, nil, isAccepted: isAccepted),
            Self.message(Self.revoked, "msg_3", isAccepted: !isAccepted),
        ]
        let faults = DemonstrationDeliveries.faults(in: messages, expecting: [Self.revoked])
        #expect(faults == ["the application could not verify the signature of siwa.consent.revoked of eve"])
    }

    @Test("Two changes with the same id are a fault.")
    func sharedID() {
        let messages = [Self.message(Self.disabled, "msg_1"), Self.message(Self.enabled, "msg_1")]
        let faults = DemonstrationDeliveries.faults(in: messages, expecting: [Self.disabled, Self.enabled])
        #expect(faults == ["the application got several changes with the id msg_1"])
    }
}
