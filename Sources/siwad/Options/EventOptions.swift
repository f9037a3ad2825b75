import AppleSimulator
import AppleTokens
import ArgumentParser

/// A notification of `siwad simulate`.
struct EventOptions: ParsableArguments {
    @Option(name: .long, help: ArgumentHelp("Private key, written by simulate keys.", valueName: "file"))
    var key: String
    @Option(
        name: .long,
        help: "email-disabled, email-enabled, consent-revoked, account-deleted, or any other text."
    )
    var type: String
    @Option(name: .long, help: "The person (default: a random one).")
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
    @Option(name: .long, parsing: .unconditional, help: "Its identifier (default: a random one).")
    var jti: String?

    func validate() throws {
        guard !privateEmail || email != nil else { throw ValidationError("--private-email needs --email") }
    }

    /// The event, with defaults for the options that are not given.
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
