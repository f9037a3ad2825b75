import AccountStore
import ArgumentParser
import Effects
import Postgres
import Settings
import Terminal

/// The name of an endpoint.
struct EndpointNameOptions: ParsableArguments {
    @Argument(help: "Its name: lower-case letters, digits and hyphens.")
    var name: String

    func validate() throws {
        do throws(MalformedEndpoint) {
            try EndpointConfiguration.check(name: name)
        } catch {
            throw ValidationError(error.advice)
        }
    }

    /// - Throws: `CommandFailure`, or `PostgresError`.
    func find(in session: borrowing Session) throws -> Endpoint { try Endpoints.find(name, in: session) }
}

extension Endpoints {
    /// - Throws: `CommandFailure` if no endpoint has the name, or `PostgresError`.
    static func find(_ name: String, in session: borrowing Session) throws -> Endpoint {
        let all = try all(in: session).map(\.endpoint)
        if let endpoint = all.first(where: { $0.name == name }) { return endpoint }
        let names = all.map(\.name)
        let add = nextCommand("endpoints add --help", accepting: [])
        let inUse = "the names in use are \(names.joined(separator: ", "))"
        let step = names.isEmpty ? "\(add) explains how to add one" : inUse
        // The URL of an endpoint may be given in the place of its name.
        let given = Redaction.redacted(VisibleText.visible(name))
        throw CommandFailure(.nothingMatched, "no endpoint has the name \(given): \(step)")
    }
}

/// The configuration of an endpoint as options.
struct EndpointOptions: ParsableArguments {
    @Option(help: ArgumentHelp("Where changes are posted: https://…", valueName: "url"))
    var url: String?
    @Option(
        parsing: .unconditionalSingleValue,
        help: ArgumentHelp(
            "Type that it gets, such as consent.revoked; repeatable (default: all but consent.authorized).",
            valueName: "type"
        ),
        completion: .list(ChangeEvent.Kind.allCases.map(\.rawValue))
    )
    var type: [String] = []
    @Option(
        parsing: .unconditionalSingleValue,
        help: ArgumentHelp("App group whose changes it gets; repeatable (default: all).", valueName: "app-id"),
        completion: .appID
    )
    var app: [String] = []
    @Option(
        help:
            "What a change waits for: the first attempt (default) or the end of the earlier ones of its person, or none."
    )
    var ordering: String?
    @Option(parsing: .unconditional, help: "Most requests of a daemon at the same time (default: 8).")
    var concurrency: String?
    @Option(parsing: .unconditional, help: ArgumentHelp("Longest request (default: 15s).", valueName: "duration"))
    var timeout: String?
    @Option(
        parsing: .unconditional,
        help: ArgumentHelp("Most requests of a daemon in a second (default: no limit).", valueName: "number")
    )
    var rate: String?
    @Option(
        parsing: .unconditional,
        help: ArgumentHelp(
            "Time before each further attempt, separated by commas, or none (default: 5s,5m,30m,2h,5h,10h,14h,20h,24h).",
            valueName: "durations"
        )
    )
    var retries: String?
    @Option(
        parsing: .unconditional,
        help: ArgumentHelp("Disable it after failing for this long; 0s: never (default: 5d).", valueName: "duration")
    )
    var disableAfter: String?
    @Option(help: "hmac (default), ed25519 or both.")
    var signature: String?
    @Option(help: ArgumentHelp("email: events about e-mail contain the address (default: none).", valueName: "data"))
    var include: String?

    /// What is given, by field.
    private var given: [(field: EndpointField, option: String, texts: [String])] {
        func one(_ text: String?) -> [String] { text.map { [$0] } ?? [] }
        func list(_ text: String?) -> [String] {
            guard let text else { return [] }
            let texts = text.split(separator: ",").map(String.init)
            // A list without elements is refused, not ignored.
            return texts.isEmpty ? [""] : texts
        }
        let all: [(EndpointField, String, [String])] = [
            (.url, "--url", one(url)), (.types, "--type", type), (.apps, "--app", app),
            (.ordering, "--ordering", one(ordering)), (.concurrency, "--concurrency", one(concurrency)),
            (.timeout, "--timeout", one(timeout)), (.rate, "--rate", one(rate)),
            (.retries, "--retries", list(retries)),
            (.disableAfter, "--disable-after", one(disableAfter)), (.signature, "--signature", one(signature)),
            (.include, "--include", one(include)),
        ]
        return all.filter { !$0.2.isEmpty }
    }

    var isEmpty: Bool { given.isEmpty }

    func validate() throws {
        var configuration = EndpointConfiguration(name: "", url: nil)
        try apply(to: &configuration)
    }

    /// - Throws: `ValidationError`.
    func apply(to configuration: inout EndpointConfiguration) throws {
        for (field, option, texts) in given {
            guard texts != ["default"] || field == .url else {
                field.reset(in: &configuration)
                continue
            }
            do throws(MalformedEndpoint) {
                try field.set(texts, in: &configuration)
            } catch {
                throw ValidationError("\(option): \(error.advice)")
            }
        }
    }
}
