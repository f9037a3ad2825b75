import Listening
import Terminal
import Testing

@testable import Postgres
@testable import siwad

@Suite("A failure of PostgreSQL")
struct CommandFailureCausesTests {
    private func failure(_ code: PostgresError.Code, _ state: String? = nil) -> CommandFailure? {
        CommandFailure(knownCause: PostgresError(code, "cause", sqlState: state.map { SQLState(rawValue: $0) }))
    }

    @Test("becomes an exit code and a next step.")
    func codes() {
        #expect(failure(.connectionFailed)?.status == .unavailable)
        #expect(failure(.connectionFailed, "28P01")?.message.contains("check user and password") == true)
        #expect(failure(.connectionFailed, "3D000")?.message.contains("create the database") == true)
        #expect(failure(.server, "42P01")?.status == .configuration)
        #expect(failure(.server, "3F000")?.message.contains("run siwad migrate") == true)
        #expect(failure(.server, "42501")?.message.contains("siwad_daemon, or of siwad_reader") == true)
        #expect(failure(.server, "42501")?.message.contains("change nothing and read no secrets") == true)
        #expect(failure(.server, "25006")?.status == .unavailable)
        #expect(failure(.server, "25006")?.message.contains("name the primary in SIWAD_DATABASE_URL") == true)
        #expect(failure(.server, "55P03")?.status == .unavailable)
        #expect(failure(.server, "55P03")?.message.hasSuffix("holds a lock; try again") == true)
        #expect(failure(.server, "57P01")?.status == .unavailable)
        #expect(failure(.server, "23505")?.status == .failed)
        #expect(failure(.usage)?.status == .configuration)
        #expect(failure(.timedOut)?.status == .unavailable)
        #expect(failure(.migration)?.status == .configuration)
    }

    @Test("names the migration that failed, and does not advise to migrate.")
    func migration() {
        func failure(_ state: String) -> CommandFailure? {
            var error = PostgresError(.server, "cause", sqlState: SQLState(rawValue: state))
            error.migration = "2 (second)"
            return CommandFailure(knownCause: error)
        }
        #expect(failure("42P01")?.status == .failed)
        #expect(failure("40P01")?.status == .failed)
        #expect(failure("53100")?.status == .unavailable)
        #expect(failure("57014")?.status == .unavailable)
        for state in ["42P01", "53100", "23505"] {
            #expect(failure(state)?.message.hasPrefix("migration 2 (second) failed: ") == true, "\(state)")
        }
    }
}

@Suite("A failure of a server")
struct ServerFailureTests {
    private func status(_ code: ServerError.Code) -> CommandStatus? {
        CommandFailure(knownCause: ServerError(code, "cause; step"))?.status
    }

    @Test("is a configuration error only if a change of the configuration is needed.")
    func codes() {
        #expect(status(.addressInUse) == .failed)
        #expect(status(.addressUnavailable) == .failed)
        #expect(status(.permissionDenied) == .configuration)
        #expect(status(.unreadableCertificate) == .configuration)
    }
}
