import AccountStore
import AppleTokens
import ArgumentParser
import Basics
import JOSE
import Postgres
import Settings
import Terminal

struct SealingCommand: ParsableCommand {
    static let configuration = CommandConfiguration(
        commandName: "sealing",
        abstract: "Make the keys that seal secrets in the database, and replace them.",
        discussion: """
            Secrets of endpoints and Apple's refresh tokens are stored encrypted. The keys are in SIWAD_SEALING_KEYS, one line NAME:BASE64 each: the \
            first seals, all of them open. To replace a key:

            1. Append the line of siwad sealing new-key to the keys of every daemon, and reload them, or restart \
            them if systemd passes the keys as a credential.
            2. Move it to the first place on every daemon, and reload or restart them.
            3. Run siwad sealing rotate with the same keys.
            4. Remove the old key when siwad doctor says at token-keys that nothing needs it any more, and not before 10 \
            minutes plus SIWAD_IDENTITY_TOKEN_AGE after step 2: nonces that siwad issued with it are in use until then.

            Example:
              siwad sealing new-key
              siwad sealing status
              siwad sealing rotate --note 'yearly, ticket 4711'
            """,
        subcommands: [SealingNewKeyCommand.self, SealingStatusCommand.self, SealingRotateCommand.self]
    )
}

struct SealingNewKeyCommand: Command {
    static let configuration = CommandConfiguration(
        commandName: "new-key",
        abstract: "Print a line with a random key for SIWAD_SEALING_KEYS.",
        usage: "siwad sealing new-key [<options>]",
        discussion: """
            The key is stored nowhere: keep a copy apart from the backups of the database.

            Example:
              siwad sealing new-key >> /etc/siwad/sealing-keys
            """
    )

    @Option(parsing: .unconditional, help: "Name of the key (default: the day and two random bytes).")
    var name: String?
    @Flag(help: "Print one JSON object.")
    var json = false
    @OptionGroup var common: CommonOptions

    /// Its output may become the value of a setting.
    var needsSettings: Bool { false }

    func validate() throws {
        guard name.map(SealingKeys.isName) ?? true else {
            throw ValidationError("--name has 1 to 64 letters, digits, hyphens, dots and underscores")
        }
    }

    func run(_ invocation: Invocation) async throws {
        let day = WallTime.now().iso8601.prefix(10)
        let name = try name ?? "\(day)-" + SecureRandom.bytes(2).hexadecimal
        let line = try SealingKeys.newLine(name: name)
        let members: [JSONText.Member] = [.init("name", name.json), .init("line", line.json)]
        invocation.console.print(json ? JSONText.object(members).line : line)
    }
}

struct SealingStatusCommand: DatabaseCommand {
    static let configuration = CommandConfiguration(
        commandName: "status",
        abstract: "Count the sealed secrets by their key.",
        usage: "siwad sealing status [<options>]",
        discussion: """
            It needs the role siwad_daemon, because siwad_reader may not read the secrets. siwad doctor also opens each \
            secret of an endpoint.

            Example:
              siwad sealing status
            """
    )

    @Flag(help: "Print one JSON object per table and key.")
    var json = false
    @OptionGroup var database: DatabaseOptions

    func run(_ invocation: Invocation) async throws {
        let names = invocation.configuration.sealingKeys?.names ?? []
        let rows = try await invocation.read { session in
            var tables: [(column: SealedColumn, counts: [String: Int])] = []
            for column in SealedColumn.allCases { tables.append((column, try column.counts(in: session))) }
            let used = tables.filter { !$0.counts.isEmpty }
            var rows: [SealingStatus] = []
            for (column, counts) in used.isEmpty ? tables : used {
                let missing = counts.keys.filter { !names.contains($0) }.sorted()
                rows += (names + missing).map { name in
                    let use: SealingStatus.Use =
                        name == names.first ? .seals : names.contains(name) ? .opens : .missing
                    return SealingStatus(table: column.rawValue, key: name, count: counts[name] ?? 0, use: use)
                }
            }
            return rows
        }
        let status = Listing(rows: rows, noun: "sealed secret", columns: SealingStatus.columns)
        guard !rows.isEmpty else {
            throw CommandFailure(.nothingMatched, "nothing is sealed, and SIWAD_SEALING_KEYS is not set")
        }
        invocation.console.print(status, asJSON: json)
    }
}

/// The secrets of a table that are sealed with a key.
private struct SealingStatus: Sendable {
    /// What the keys of the configuration include the key for.
    enum Use: String, Sendable {
        case seals
        case opens
        case missing
    }

    let table: String
    let key: String
    let count: Int
    let use: Use

    static var columns: [Column<SealingStatus>] {
        [
            .init("table", \.table, "TABLE"), .init("key", \.key, "KEY"),
            .init("secrets", \.count, "SECRETS", .right),
            .init("use", \.use.rawValue, "USE") { status in
                let color: Terminal.Color? =
                    switch status.use {
                    case .seals: .green
                    case .opens: nil
                    case .missing: .red
                    }
                return Table.Cell(status.use.rawValue, color: color)
            },
        ]
    }
}

// MARK: - Rotate

struct SealingRotateCommand: DatabaseCommand {
    static let configuration = CommandConfiguration(
        commandName: "rotate",
        abstract: "Seal all secrets again with the first of SIWAD_SEALING_KEYS.",
        usage: "siwad sealing rotate [<options>]",
        discussion: """
            The secrets stay the same, so receivers see no difference. Each batch of 500 is committed with its entry in \
            the audit: an interrupted run can be repeated and continues with the rest. A secret that no key opens stays \
            as it is; a refresh token that no key opens becomes unreadable, until a later run opens it.

            Example:
              siwad sealing rotate --dry-run
              siwad sealing rotate --note 'yearly, ticket 4711'
            """
    )

    @OptionGroup var rehearsal: RehearsalOptions
    @Flag(help: "Print one JSON object.")
    var json = false
    @OptionGroup var database: DatabaseOptions

    func validate() throws { try requireNothing(rehearsal.advice) }

    func run(_ invocation: Invocation) async throws {
        let keys = try invocation.sealingKeys(orElse: "no secret can be sealed again")
        let name = try rehearsal.name(environment: invocation.environment)
        let (console, json, isDryRun, note) = (invocation.console, json, rehearsal.dryRun, rehearsal.note)
        try await Services.runInterruptibly {
            try await invocation.withDatabase { pool in
                var progress = ProgressLine(title: isDryRun ? "dry run" : "sealing", on: console)
                var rotation = SealingRotation(keys: keys, operatorName: name, note: isDryRun ? nil : note)
                do {
                    let total = try await rotation.begin(on: pool)
                    while try await rotation.continue(on: pool) {
                        progress.advance(to: rotation.resealed + rotation.unopened, of: total)
                    }
                    progress.end()
                } catch {
                    progress.end()
                    if rotation.resealed > 0, !isDryRun {
                        console.note("\(rotation.resealed) sealed so far; the same command goes on with what is left")
                    }
                    throw error
                }
                try rotation.report(asJSON: json, to: console)
            }
        }
    }
}

extension SealedColumn {
    /// The content of a text. A refresh token is also compared with its row: in another row, it opens nothing.
    fileprivate func open(_ row: SealedRow, with keys: SealingKeys) throws(JOSEError) -> [UInt8] {
        let content = try keys.open(row.sealed)
        switch self {
        case .endpointSecrets: break
        case .appleTokens:
            guard let account = row.identity.first.flatMap({ Int64($0) }), let client = row.identity.last else { break }
            _ = try SealedRefreshToken(account: account, client: ClientID(client)).token(in: content)
        }
        return content
    }
}

/// One run of `siwad sealing rotate`, batch by batch.
private struct SealingRotation: Sendable {
    /// Rows in one transaction. A daemon that reads one of them doesn't wait for it.
    private static let batch = 500

    let keys: SealingKeys
    let operatorName: String
    /// nil: a dry run, which changes nothing.
    let note: String?
    private(set) var resealed = 0
    private(set) var unopened = 0
    private(set) var firstProblem: String?
    /// How many of `unopened` are refresh tokens.
    private var unopenedTokens = 0
    private var skipped = 0
    private var columns = SealedColumn.allCases
    /// The last row of the first of `columns` that was read.
    private var last: [String]?

    init(keys: SealingKeys, operatorName: String, note: String?) {
        self.keys = keys
        self.operatorName = operatorName
        self.note = note
    }

    /// The number of secrets to seal with the first key.
    func begin(on pool: ConnectionPool) async throws -> Int {
        let first = keys.first
        return try await pool.transaction(.repeatableRead) { session throws(PostgresError) in
            var total = 0
            for column in SealedColumn.allCases {
                total += try column.count(toSealWith: first, in: session)
            }
            return total
        }
    }

    /// Seals the next batch; returns false at the end.
    mutating func `continue`(on pool: ConnectionPool) async throws -> Bool {
        guard let column = columns.first else {
            // Rows that another session had locked are left.
            if note != nil { skipped = max(0, try await begin(on: pool) - unopened) }
            return false
        }
        let (keys, last, operatorName, note) = (keys, last, operatorName, note)
        let (read, sealed, problems) = try await pool.transaction { session throws(PostgresError) in
            let rows = try column.rows(
                after: last,
                toSealWith: keys.first,
                limit: Self.batch,
                locking: note != nil,
                in: session
            )
            var sealed: [SealedRow] = []
            var unopened: [SealedRow] = []
            var problems: [String] = []
            for row in rows {
                do throws(JOSEError) {
                    let text = try keys.seal(column.open(row, with: keys))
                    sealed.append(SealedRow(identity: row.identity, keyName: keys.first, sealed: text))
                } catch {
                    unopened.append(row)
                    problems.append("\(row.identity.joined(separator: "/")) of \(column.rawValue): \(error)")
                }
            }
            if let note {
                func action(_ change: String, _ affected: Int) -> OperatorAction {
                    OperatorAction(
                        operatorName: operatorName,
                        action: "sealing rotate",
                        target: "\(column.rawValue) \(change)",
                        note: note,
                        affected: affected
                    )
                }
                let aside = try unopened.isEmpty ? 0 : column.setAside(unopened, in: session)
                if aside > 0 { try OperatorActions.record(action("set aside", aside), in: session) }
                if !sealed.isEmpty {
                    try column.replace(sealed, in: session)
                    try OperatorActions.record(action("to \(keys.first)", sealed.count), in: session)
                }
            }
            return (rows.last?.identity, sealed.count, problems)
        }
        resealed += sealed
        unopened += problems.count
        if column == .appleTokens { unopenedTokens += problems.count }
        firstProblem = firstProblem ?? problems.first
        self.last = read
        if read == nil { columns.removeFirst() }
        return true
    }

    /// - Throws: `CommandFailure` if secrets are left.
    func report(asJSON json: Bool, to console: Console) throws {
        let isDryRun = note == nil
        if json {
            let counts: [JSONText.Member] = [
                .init("key", keys.first.json), .init("resealed", resealed.json), .init("unopened", unopened.json),
                .init("skipped", skipped.json), .init("dry_run", isDryRun.json),
            ]
            console.print(JSONText.object(counts).line)
        } else {
            console.print("\(counted(resealed, "secret")) \(isDryRun ? "would be " : "")sealed with \(keys.first)")
        }
        if isDryRun { console.note("dry run: nothing was changed") }
        if let firstProblem {
            let status: CommandStatus = resealed == 0 ? .failed : .partlyFailed
            throw CommandFailure(
                status,
                "\(unopened) can't be opened\(fate): \(firstProblem)",
                nextStep: "put the missing key back into \(SettingKey.sealingKeys.environmentName), and run it again"
            )
        }
        guard skipped == 0 else {
            throw CommandFailure(.partlyFailed, "another session changes \(skipped) of them: run the command again")
        }
    }

    /// What happens to the secrets that no key opens.
    private var fate: String {
        guard unopenedTokens > 0 else { return " and stay as they are" }
        let aside = note == nil ? "would be set aside" : "are set aside"
        guard unopenedTokens < unopened else { return " and \(aside)" }
        return "; the refresh tokens among them (\(unopenedTokens)) \(aside)"
    }
}
