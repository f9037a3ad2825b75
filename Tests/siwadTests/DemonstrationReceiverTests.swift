import Testing

@testable import siwad

@Suite("The application of siwad dev")
struct DemonstrationReceiverTests {
    private static func message(about subject: String) -> [UInt8] {
        Array(#"{"type":"siwa.email.forwarding_enabled","data":{"sub":"\#(subject)"}}"#.utf8)
    }

    @Test("It refuses the next message about one person, and none about other people.")
    func refusal() throws {
        let receiver = try DemonstrationReceiver()
        receiver.refuseOnce(subject: "ben")
        let answers = ["ada", "ben", "ben", ""].map { subject in
            receiver.received(Self.message(about: subject)) { _ in nil }
        }
        #expect(answers == [true, false, true, true])
        #expect(receiver.messages.map(\.isAccepted) == answers)
    }

    @Test("After the demonstration it accepts messages, and keeps none.")
    func afterwards() throws {
        let receiver = try DemonstrationReceiver()
        let body = Self.message(about: "ada")
        _ = receiver.received(body) { _ in nil }
        #expect(receiver.messages.count == 1)
        receiver.stopCollecting()
        let answers = (0..<1000).map { _ in receiver.received(body) { _ in nil } }
        #expect(!answers.contains(false))
        #expect(receiver.messages.isEmpty)
    }
}
