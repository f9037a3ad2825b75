// swift-tools-version: 6.2

import PackageDescription

let house: [SwiftSetting] = [
    .swiftLanguageMode(.v6),
    .enableUpcomingFeature("ExistentialAny"),
    .enableUpcomingFeature("InternalImportsByDefault"),
    .enableUpcomingFeature("MemberImportVisibility"),
    .treatAllWarnings(as: .error),
]

/// Fuzzing is a package of its own: everything in it is compiled with the instrumentation of libFuzzer and
/// AddressSanitizer, and nothing of it belongs into a build of siwad. `deploy/fuzz` builds and runs it.
let package = Package(
    name: "fuzzing",
    platforms: [.macOS(.v26)],
    dependencies: [
        .package(name: "siwad", path: "../.."),
        .package(url: "https://github.com/apple/swift-nio", from: "2.101.2"),
    ],
    targets: [
        .target(name: "CLibFuzzer"),
        // The connections of siwad's NotificationServer without what accepts them, which would bring TLS and a web
        // framework along to be compiled. A link, since sources outside of a package can't be part of it.
        .target(
            name: "HTTPConnection",
            dependencies: [
                .product(name: "AppleNotifications", package: "siwad"),
                .product(name: "Intake", package: "siwad"),
                .product(name: "NIOCore", package: "swift-nio"),
                .product(name: "NIOHTTP1", package: "swift-nio"),
                .product(name: "NIOTLS", package: "swift-nio"),
                .product(name: "Telemetry", package: "siwad"),
            ],
            sources: [
                "ByteGate.swift",
                "ConnectionExchange.swift",
                "ConnectionExchange+ending.swift",
                "LaneInterface.swift",
                "NotificationConnection.swift",
                "NotificationConnection+pipeline.swift",
                "NotificationConnection+reading.swift",
                "NotificationConnection+writing.swift",
                "NotificationLoop.swift",
                "Outcome.swift",
                "PlainRequest.swift",
                "ProtocolError.swift",
                "RequestInspection.swift",
                "Responses.swift",
                "ServerLimits.swift",
                "TicketTable.swift",
            ],
            swiftSettings: house + [.enableUpcomingFeature("NonisolatedNonsendingByDefault")]
        ),
        .executableTarget(
            name: "Fuzz",
            dependencies: [
                "CLibFuzzer",
                "HTTPConnection",
                .product(name: "AppleNotifications", package: "siwad"),
                .product(name: "Intake", package: "siwad"),
                .product(name: "JOSE", package: "siwad"),
                .product(name: "NIOCore", package: "swift-nio"),
                .product(name: "NIOEmbedded", package: "swift-nio"),
                .product(name: "NIOHTTP1", package: "swift-nio"),
                .product(name: "NIOTLS", package: "swift-nio"),
                .product(name: "Spool", package: "siwad"),
                .product(name: "Telemetry", package: "siwad"),
            ],
            swiftSettings: house
        ),
    ]
)
