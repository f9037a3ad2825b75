import AppleTokens
import AppleSimulator
import ArgumentParser

/// One notification, as the flags of `simulate` describe it.
struct EventOptions: ParsableArguments {
    @Option(name: .long, help: ArgumentHelp("Private key, as simulate keys writes it.", valueName: "file"))
    var key: String
    @Option(
        name: .long,
        help: "email-disabled, email-enabled, consent-revoked, account-deleted, or any other text."
    )
    var type: String
    @Option(name: .long, help: "The person; a new one if it is left out.")
    var sub: String?
    @Option(name: .long, help: ArgumentHelp("Primary App ID.", valueName: "app-id"))
    var app: String
    @Option(name: .long, help: ArgumentHelp("Address of an email event.", valueName: "address"))
    var email: String?
    @Flag(name: .customLong("private-email"), help: "The address is a private relay address.")
    var privateEmail = false
    @Option(
        name: .customLong("event-time"),
        help: TimeArgument.help("When it happened", otherwise: "10 s before it was issued"),
        transform: TimeArgument.init(parsing:)
    )
    var eventTime: TimeArgument?
    @Option(
        name: .customLong("issued-at"),
        help: TimeArgument.help("When Apple signed it", otherwise: "now"),
        transform: TimeArgument.init(parsing:)
    )
    var issuedAt: TimeArgument?
    @Option(name: .long, parsing: .unconditional, help: "Its identifier; a new one if left out.")
    var jti: String?

    /// Refuses what makes no sense together.
    func validate() throws {
        guard !privateEmail || email != nil else { throw ValidationError("--private-email needs --email") }
    }

    /// The event, with what was left out filled in.
    func event(now: WallTime) -> SimulatedEvent {
        let issued = issuedAt?.time ?? now
        let happened = eventTime?.time ?? issued - .seconds(10)
        return SimulatedEvent(
            type: type,
            sub: sub ?? SimulatedEvent.randomSubject(),
            app: app,
            email: email,
            isPrivateEmail: email == nil ? nil : privateEmail,
            eventTime: happened.wholeMilliseconds,
            issuedAt: issued.wholeSeconds,
            id: jti ?? SimulatedEvent.randomID()
        )
    }
}
