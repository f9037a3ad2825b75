/// A person with an Apple Account.
package struct SimulatedPerson: Sendable, Equatable {
    /// How the control names the person, such as `ada`.
    package let name: String
    package let sub: String
    package var email: String
    package let relayAddress: String
    package var givenName: String
    package var familyName: String
    /// True if the relay forwards mail.
    package var forwardsMail = true
    package var isDeleted = false
    /// The letters in all tokens of the person.
    let letters = OpaqueToken.letters()
    /// The apps, by their primary App ID, that the person uses, and whether the person hides the address from each.
    var usedApps: [String: Bool] = [:]

    init(name: String) {
        self.name = name
        sub = SimulatedEvent.randomSubject()
        email = "\(name)@example.com"
        let characters = "abcdefghijklmnopqrstuvwxyz0123456789"
        relayAddress =
            String((0..<10).map { _ in characters.randomElement() ?? "a" }) + "@" + Self.relayDomain(of: name)
        givenName = name.prefix(1).uppercased() + name.dropFirst()
        familyName = "Example"
    }

    /// Apple issues addresses in the first domain; older ones stay in the second. The first letter decides, so that both occur
    /// and a person has the same domain in each run.
    package static func relayDomain(of name: String) -> String {
        (name.utf8.first ?? 0) & 1 == 1 ? "private.icloud.com" : "privaterelay.appleid.com"
    }

    func address(for app: String) -> SimulatedIdentity.Address {
        let hides = usedApps[app] ?? false
        return SimulatedIdentity.Address(hides ? relayAddress : email, isPrivate: hides)
    }
}
