import AppleTokens
import StoreTestSupport
import Testing

@testable import AccountStore

@Suite("Facts of a batch")
struct BatchFactsTests {
    @Test("Each person has one entry, ordered by the bytes of the subject, and one consent for each app.")
    func persons() {
        let facts = BatchFacts([
            .sample("email-disabled", sub: "b", at: .at(1), id: "1"),
            .sample("consent-revoked", sub: "a", at: .at(2), id: "2"),
            .sample("consent-revoked", sub: "B", at: .at(3), id: "3"),
            .sample("email-enabled", sub: "b", at: .at(4), id: "4"),
        ])
        #expect(facts.persons.map(\.subject.rawValue) == ["B", "a", "b"])
        #expect(facts.consents.map(\.person) == [0, 1, 2])
        #expect(facts.consentIndices == [2, 1, 0, 2])
        #expect(facts.leads == [true, true, true, true])
        #expect(facts.consents.map { $0.revoked?.time } == [.at(3), .at(2), nil])
    }

    @Test("Subjects with equal beginnings, and short subjects, are ordered by bytes too.")
    func order() {
        let subjects = ["person10", "person1", "å", "person100", "ab", "person2", "person1000", "a", "z", "person101"]
        let facts = BatchFacts(
            subjects.enumerated().map { .sample("email-disabled", sub: $1, at: .at(1), id: "\($0)") }
        )
        let expected = ["a", "ab", "person1", "person10", "person100", "person1000", "person101", "person2", "z", "å"]
        #expect(facts.persons.map(\.subject.rawValue) == expected)
    }

    @Test("Notifications are ordered by person, then app, then position in the batch.")
    func notifications() {
        let facts = BatchFacts([
            .sample("consent-revoked", sub: "b", at: .at(1), id: "1", app: "com.example.two"),
            .sample("email-disabled", sub: "b", at: .at(9), id: "2"),
            .sample("email-enabled", sub: "a", at: .at(3), id: "3"),
            .sample("email-enabled", sub: "b", at: .at(2), id: "4"),
            .sample("consent-revoked", sub: "b", at: .at(1), id: "5"),
        ])
        #expect(facts.order == [2, 1, 3, 4, 0])
        #expect(facts.consentIndices == [2, 1, 0, 1, 1])
    }

    @Test("The earliest deletion and the latest of all other events lead; of equal times, the first.")
    func leaders() {
        let facts = BatchFacts([
            .sample("account-deleted", sub: "p", at: .at(5), id: "1"),
            .sample("account-delete", sub: "p", at: .at(3), id: "2"),
            .sample("account-deleted", sub: "p", at: .at(3), id: "3"),
            .sample("consent-revoked", sub: "p", at: .at(7), id: "4"),
            .sample("consent-revoked", sub: "p", at: .at(7), id: "5"),
            .sample("email-disabled", sub: "p", at: .at(1), id: "6"),
            .sample("email-disabled", sub: "p", at: .at(2), id: "7"),
        ])
        #expect(facts.leads == [false, true, false, true, false, false, true])
        #expect(facts.persons[0].deleted?.time == .at(3))
        #expect(facts.persons[0].forwardingDisabled?.time == .at(2))
        #expect(facts.persons[0].forwardingEnabled?.time == nil)
        #expect(facts.consents[0].revoked?.time == .at(7))
    }

    @Test("The latest address is used, and of equal observations the first provides it.")
    func addresses() {
        let facts = BatchFacts([
            .sample("email-disabled", sub: "p", at: .at(9), id: "1"),
            .sample("email-enabled", sub: "p", at: .at(7), id: "2", email: "b@example.com"),
            .sample("email-enabled", sub: "p", at: .at(7), id: "3", email: "b@example.com"),
            .sample("email-disabled", sub: "p", at: .at(7), id: "4", email: "a@example.com", emailIsPrivate: true),
            .sample("email-disabled", sub: "p", at: .at(6), id: "5", email: "c@example.com"),
        ])
        #expect(facts.providesAddress == [false, true, false, false, false])
        #expect(facts.persons[0].address?.email == "b@example.com")
    }

    @Test("The same subject in two teams is two people.")
    func teams() {
        let facts = BatchFacts([
            .sample("consent-revoked", sub: "p", at: .at(1), id: "1"),
            .sample("consent-revoked", sub: "p", at: .at(2), id: "2", team: "BBBBBBBBBB", app: "com.example.other"),
        ])
        #expect(facts.persons.count == 2)
        #expect(facts.leads == [true, true])
    }

    @Test("An empty batch has no facts.")
    func empty() {
        let facts = BatchFacts([])
        #expect(facts.persons.isEmpty && facts.consents.isEmpty && facts.leads.isEmpty)
    }
}
