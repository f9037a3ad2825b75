import AppleSimulator
import AppleTokens
import ArgumentParser

/// A notification of `siwad simulate`.
struct EventOptions: ParsableArguments {
    @Option(help: ArgumentHelp("Private key, written by simulate keys.", valueName: "file"))
    var key: String
    @Option(help: "email-disabled, email-enabled, consent-revoked, account-deleted, or any other text.")
    var type: String
    @Option(help: "The person (default: a random one).")
    var sub: String?
    @Option(help: ArgumentHelp("Primary App ID.", valueName: "app-id"))
    var app: String
    @Option(help: ArgumentHelp("Address of an email event.", valueName: "address"))
    var email: String?
    @Flag(help: "The address is a private relay address.")
    var privateEmail = false
    @Option(
        help: WallTime.help("When it happened", otherwise: "10 s before it was issued"),
        transform: WallTime.init(argument:)
    )
    var eventTime: WallTime?
    @Option(help: WallTime.help("When Apple signed it", otherwise: "now"), transform: WallTime.init(argument:))
    var issuedAt: WallTime?
    @Option(parsing: .unconditional, help: "Its identifier (default: a random one).")
    var jti: String?

    func validate() throws {
        guard !privateEmail || email != nil else { throw ValidationError("--private-email needs --email") }
    }

    /// The event, with defaults for the options that are not given.
    func event(now: WallTime) -> SimulatedEvent {
        let issued = issuedAt ?? now
        let happened = eventTime ?? issued - .seconds(10)
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
