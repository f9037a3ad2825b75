import Listening
import Telemetry

/// What the servers of all tests share.
enum Surroundings {
    static let eventLoops = EventLoops.start(count: 1)

    static let log = Log(label: "test", level: .critical, format: .text) { _ in }
}
