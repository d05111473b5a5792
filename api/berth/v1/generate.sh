#!/bin/sh
# Generates the Go code of the .proto files here with the plugins that go.mod names. Needs protoc (Debian:
# protobuf-compiler).
set -e
exec protoc -I . \
	--plugin=protoc-gen-go="$(go tool -n protoc-gen-go)" \
	--plugin=protoc-gen-go-grpc="$(go tool -n protoc-gen-go-grpc)" \
	--go_out=. --go_opt=paths=source_relative \
	--go-grpc_out=. --go-grpc_opt=paths=source_relative \
	berth.proto volumes.proto
