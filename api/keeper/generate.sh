#!/bin/sh
# Generates the Go code of keeper.proto with the plugins that go.mod names. Needs protoc (Debian: protobuf-compiler).
set -e
exec protoc -I . \
	--plugin=protoc-gen-go="$(go tool -n protoc-gen-go)" \
	--plugin=protoc-gen-go-ttrpc="$(go tool -n protoc-gen-go-ttrpc)" \
	--go_out=. --go_opt=paths=source_relative \
	--go-ttrpc_out=. --go-ttrpc_opt=paths=source_relative \
	keeper.proto
