import AccountStore
import ArgumentParser
import Basics
import Postgres
import Settings
import Terminal

struct EndpointsApplyCommand: DatabaseCommand, Sendable {
    static let configuration = CommandConfiguration(
        commandName: "apply",
        abstract: "Make the endpoints what a file says, for a configuration that is kept in version control.",
        usage: "siwad endpoints apply <file> (--note <text> | --dry-run) [<options>]",
        discussion: """
            The file is YAML or JSON: below endpoints, a key for each name, and below it url and the options of \
            siwad endpoints add with their long names: types, apps, ordering, concurrency, timeout, rate, retries, \
            disable_after, signature, include. What is left out has its default. The file never has secrets: siwad \
            makes them. Endpoints that the file lacks stay, or are removed with --prune. Whether an endpoint is paused \
            stays as it is.

            Example:
              siwad endpoints apply endpoints.yaml --dry-run
              siwad endpoints apply endpoints.yaml --prune --note 'commit 1f0c9a2'
            """
    )

    @Argument(help: "YAML or JSON; - is standard input.", completion: .file())
    var file: String
    @Flag(help: "Remove endpoints that the file lacks.")
    var prune = false
    @OptionGroup var rehearsal: RehearsalOptions
    @Flag(help: "Print one JSON object per endpoint.")
    var json = false
    @OptionGroup var database: DatabaseOptions

    func validate() throws { try requireNothing(rehearsal.advice) }

    func run(_ invocation: Invocation) async throws {
        let wanted = try EndpointFile.read(file)
        let name = try rehearsal.name(environment: invocation.environment)
        let secrets = Result { try EndpointSecretMaker(invocation) }
        let command = self
        try await Services.runInterruptibly {
            try await invocation.withDatabase { pool in
                var applied = try await pool.change(rollingBack: command.rehearsal.dryRun) { session in
                    try command.apply(wanted, by: name, secrets, in: session)
                }
                // After the removals, so that no endpoint is reported as removed that is still there.
                defer { command.print(applied, to: invocation.console) }
                guard !command.rehearsal.dryRun else { return }
                // Not in the transaction: each may have many deliveries.
                for (index, row) in applied.enumerated() where row.outcome == .removed {
                    guard let id = row.id else { continue }
                    let action = command.action("remove", row.name, by: name)
                    do {
                        try await Endpoints.remove(id, row.name, as: action, on: pool, invocation.console)
                    } catch {
                        for rest in index..<applied.count { applied[rest].outcome = .kept }
                        throw error
                    }
                }
            }
        }
    }

    private func action(_ verb: String, _ target: String, by name: String) -> OperatorAction {
        OperatorAction(
            operatorName: name,
            action: "endpoints apply",
            target: "\(verb) \(target)",
            note: rehearsal.note,
            affected: 1
        )
    }

    private func apply(
        _ wanted: [EndpointConfiguration],
        by name: String,
        _ secrets: Result<EndpointSecretMaker, any Error>,
        in session: borrowing Session
    ) throws -> [AppliedEndpoint] {
        // Before the endpoints, as another command's removal does, because adding one locks the publication.
        try Endpoints.lockPublication(in: session)
        try Endpoints.lock(wanted.map(\.name), in: session)
        let present = try Endpoints.all(in: session).map(\.endpoint)
        var rows: [AppliedEndpoint] = []
        for configuration in wanted {
            guard let endpoint = present.first(where: { $0.name == configuration.name }) else {
                try configuration.checkApps(in: session)
                try secrets.get().checkKeys(of: present.filter { $0.status == .enabled }, in: session)
                let (id, _) = try Endpoints.insert(configuration, in: session)
                try secrets.get().make(configuration.signature, of: id, in: session)
                try OperatorActions.record(action("add", configuration.name, by: name), in: session)
                rows.append(AppliedEndpoint(name: configuration.name, outcome: .added))
                continue
            }
            let changed = EndpointField.allCases.filter { $0.differs(configuration, endpoint.configuration) }
            if !changed.isEmpty {
                try Endpoints.edit(endpoint, to: configuration, secrets, in: session)
                try OperatorActions.record(action("edit", configuration.name, by: name), in: session)
            }
            let outcome: AppliedEndpoint.Outcome = changed.isEmpty ? .unchanged : .changed
            rows.append(AppliedEndpoint(name: endpoint.name, outcome: outcome, fields: changed))
        }
        for endpoint in present where !wanted.contains(where: { $0.name == endpoint.name }) {
            rows.append(AppliedEndpoint(name: endpoint.name, id: endpoint.id, outcome: prune ? .removed : .kept))
        }
        return rows
    }

    private func print(_ rows: [AppliedEndpoint], to console: Console) {
        let columns: [Column<AppliedEndpoint>] = [
            .init("name", \.name, "NAME", .cutEnd(minimum: 8)),
            .init("outcome", \.outcome.rawValue, "OUTCOME"),
            .init("changed") { $0.fields.map { JSONText.string($0.rawValue) } },
            .init(title: "CHANGED", .cutEnd(minimum: 12)) { row in
                Table.Cell(row.fields.map(\.rawValue).joined(separator: ", "))
            },
        ]
        if json {
            console.print(lines: columns.objects(of: rows).map(\.line))
        } else if !rows.isEmpty {
            console.print(lines: columns.table(of: rows).lines(style: console.style))
        }
        if !prune, rows.contains(where: { $0.outcome == .kept }) {
            console.note("kept: the file lacks it; --prune removes it")
        }
        if rehearsal.dryRun { console.note("dry run: nothing was changed") }
    }
}

struct AppliedEndpoint: Sendable {
    enum Outcome: String, Sendable {
        case added
        case changed
        case unchanged
        case removed
        /// The file lacks it, and it is still there.
        case kept
    }

    let name: String
    /// Of an endpoint that the file lacks.
    var id: Int32?
    var outcome: Outcome
    var fields: [EndpointField] = []
}

extension EndpointField {
    fileprivate func differs(_ one: EndpointConfiguration, _ other: EndpointConfiguration) -> Bool {
        // The shown texts lack the query.
        self == .url ? one.url != other.url : texts(in: one) != texts(in: other)
    }
}

/// The file of `siwad endpoints apply`.
enum EndpointFile {
    /// - Throws: `CommandFailure` that names the line.
    static func read(_ path: String) throws -> [EndpointConfiguration] {
        let name = Redaction.redacted(VisibleText.visible(path))
        let bytes: [UInt8]
        do throws(FileReadingError) {
            bytes = try readFile(atPath: path)
        } catch {
            throw CommandFailure(.configuration, "\(name): \(error)")
        }
        do throws(ConfigurationFileError) {
            return try endpoints(YAMLNode(parsing: bytes))
        } catch {
            let place = error.column > 1 ? "\(error.line):\(error.column)" : "\(error.line)"
            throw CommandFailure(.configuration, "\(name):\(place): \(error.cause)")
        }
    }

    static func endpoints(_ file: YAMLNode) throws(ConfigurationFileError) -> [EndpointConfiguration] {
        guard case .mapping(let members) = file.value, members.count == 1, members[0].key == "endpoints" else {
            let other = file.members.first { $0.key != "endpoints" }
            throw problem(other?.line ?? file.line, "write the endpoints below the only key endpoints")
        }
        // A file that was cut off must not remove all endpoints.
        if case .null = members[0].node.value {
            throw problem(members[0].line, "the key endpoints has no value: write {} if there are to be none")
        }
        guard case .mapping(let endpoints) = members[0].node.value else {
            throw problem(members[0].line, "write a key for each endpoint: its name")
        }
        return try endpoints.map { member throws(ConfigurationFileError) in try endpoint(member) }
    }

    private static func endpoint(_ member: YAMLNode.Member) throws(ConfigurationFileError) -> EndpointConfiguration {
        do throws(MalformedEndpoint) {
            try EndpointConfiguration.check(name: member.key)
        } catch {
            throw problem(member.line, error.advice)
        }
        var configuration = EndpointConfiguration(name: member.key, url: nil)
        for value in member.node.members {
            guard let field = EndpointField(rawValue: value.key) else {
                let all = EndpointField.allCases.map(\.rawValue).joined(separator: ", ")
                let key = Redaction.redacted(value.key)
                throw problem(value.line, "\(key) is not a key of an endpoint; these are: \(all)")
            }
            guard let texts = value.node.texts(isList: field.takesList) else {
                let form = field.takesList ? "a value or a list of values" : "one value"
                throw problem(value.line, "\(field.rawValue): write \(form)")
            }
            // A key without a value is as if left out.
            guard !texts.isEmpty else { continue }
            do throws(MalformedEndpoint) {
                try field.set(texts, in: &configuration)
            } catch {
                throw problem(value.line, "\(field.rawValue): \(error.advice)")
            }
        }
        guard configuration.url != nil else { throw problem(member.line, "\(member.key) has no url") }
        return configuration
    }

    private static func problem(_ line: Int, _ cause: String) -> ConfigurationFileError {
        ConfigurationFileError(line: line, column: 1, cause: cause)
    }
}

extension YAMLNode {
    fileprivate var members: [Member] {
        if case .mapping(let members) = value { members } else { [] }
    }

    /// The texts of a scalar or a list of scalars; nil for anything else.
    fileprivate func texts(isList: Bool) -> [String]? {
        switch value {
        case .null: return []
        case .scalar(let text): return [text]
        case .list(let items) where isList && !items.isEmpty:
            let texts = items.compactMap { item -> String? in
                if case .scalar(let text) = item.value { text } else { nil }
            }
            return texts.count == items.count ? texts : nil
        case .list, .mapping: return nil
        }
    }
}
