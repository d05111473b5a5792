#!/bin/sh
# Generates the Go code of shim.proto with the plugin that go.mod names. Needs protoc (Debian: protobuf-compiler).
set -e
exec protoc -I . \
	--plugin=protoc-gen-go="$(go tool -n protoc-gen-go)" \
	--go_out=. --go_opt=paths=source_relative \
	shim.proto
