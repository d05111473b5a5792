// Package keeper is the protocol between berthd and berth-keeper, generated from keeper.proto.
package keeper

//go:generate sh generate.sh
