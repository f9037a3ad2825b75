import AccountStore
import ArgumentParser
import Basics
import JOSE
import Postgres
import Settings
import Terminal
import Webhooks

struct EndpointsSecretCommand: DatabaseCommand {
    static let configuration = CommandConfiguration(
        commandName: "secret",
        abstract: "Print what a receiver needs to verify signatures.",
        usage: "siwad endpoints secret <name> [<options>]",
        discussion: """
            Prints the latest secret, whsec_… (hmac), and the latest public key, whpk_… (ed25519), one a line. Private \
            keys are never printed.

            Example:
              siwad endpoints secret shop
            """
    )

    @OptionGroup var endpoint: EndpointNameOptions
    @OptionGroup var database: DatabaseOptions

    func run(_ invocation: Invocation) async throws {
        let (options, keys) = (endpoint, try invocation.sealingKeys(orElse: "no secret can be opened"))
        let texts = try await invocation.read { session in
            let endpoint = try options.find(in: session)
            let live = try EndpointSecrets.live(of: endpoint.id, in: session)
            return try endpoint.configuration.signature.purposes.compactMap { purpose in
                try live.first { $0.purpose == purpose }?.opened(of: endpoint, keys)?.receiverText
            }
        }
        guard !texts.isEmpty else {
            let rotate = nextCommand("endpoints rotate \(options.name) --note '…'")
            throw CommandFailure(.nothingMatched, "\(options.name) has no secret: \(rotate) makes one")
        }
        invocation.console.print(lines: texts)
    }
}

extension SealedEndpointSecret {
    /// nil for a secret that signs nothing.
    ///
    /// - Throws: `CommandFailure` if no key opens it.
    func opened(of endpoint: Endpoint, _ keys: SealingKeys) throws -> WebhookSecret? {
        guard let purpose = SecretPurpose(rawValue: purpose.rawValue) else { return nil }
        let place = SealedSecret(endpoint: endpoint.id, purpose: purpose, generation: generation)
        do throws(WebhookError) {
            return try place.openWebhookSecret(sealed, with: keys)
        } catch {
            let rotate = nextCommand("endpoints rotate \(endpoint.name) --now --note '…'")
            throw CommandFailure(
                .configuration,
                "the \(purpose.rawValue) secret of \(endpoint.name) can't be opened: \(error)",
                nextStep: "add that key to \(SettingKey.sealingKeys.environmentName), or \(rotate) replaces the secret"
            )
        }
    }
}

struct EndpointsRotateCommand: EndpointChangeCommand {
    static let configuration = CommandConfiguration(
        commandName: "rotate",
        abstract: "Replace the secret of an endpoint.",
        usage: "siwad endpoints rotate <name> --note <text> [<options>]",
        discussion: """
            Until the overlap ends, events have signatures of both secrets: give the receiver the new one in that time. \
            After a leak, use --now: the old secret signs nothing more, within 5 seconds.

            Example:
              siwad endpoints rotate shop --note 'yearly rotation'
              siwad endpoints secret shop
            """
    )
    static let verb = "rotate"

    @OptionGroup var endpoint: EndpointNameOptions
    @Option(
        parsing: .unconditional,
        help: ArgumentHelp("How long the old secret is used too (default: 24h).", valueName: "duration")
    )
    var overlap: String?
    @Flag(help: "The old secret is not used any more.")
    var now = false
    @Option(help: ArgumentHelp("Secrets to use instead of new ones.", valueName: "file"), completion: .file())
    var secretFile: String?
    @OptionGroup var audit: AuditOptions
    @OptionGroup var database: DatabaseOptions

    private static let longest = Duration.seconds(365 * 86_400)

    func validate() throws {
        try requireNothing(audit.advice)
        guard !now || overlap == nil else { throw ValidationError("--now and --overlap exclude each other") }
        guard overlap.map({ Duration(short: $0).map { $0 <= Self.longest } ?? false }) ?? true else {
            throw ValidationError("--overlap: write a duration up to 365d, such as 24h")
        }
    }

    func run(_ invocation: Invocation) async throws {
        let secrets = try EndpointSecretMaker(invocation, importing: secretFile)
        let time = now ? .zero : overlap.flatMap { Duration(short: $0) } ?? .seconds(86_400)
        try await change(invocation) { endpoint, session in
            let signature = endpoint.configuration.signature
            try secrets.check(signature)
            // With --now the earlier secrets are not needed: their key may be lost.
            if time > .zero { try secrets.checkKeys(of: [endpoint], in: session) }
            try secrets.make(signature, of: endpoint.id, overlap: time, in: session)
            try Endpoints.touch(endpoint.id, in: session)
        }
        let old = time == .zero ? "the old one is not used any more" : "the old one is used too for \(time.rounded)"
        let secret = nextCommand("endpoints secret \(endpoint.name)")
        invocation.console.print("\(endpoint.name) has a new secret, \(old); \(secret) prints the new one")
    }
}
